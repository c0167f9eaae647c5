"""Pages show code as it stands in the package, without its docstrings and still valid Python."""

import ast
import functools
import inspect
from collections.abc import Callable

import pytest

from mpcourse.data_parallel import DataParallel, parallel_apply
from mpcourse.figures import timeline_picture
from mpcourse.figures.source import show_source, source_of


def kept(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(*given):
        """Never shown: the function below is."""
        return function(*given)

    return wrapper


def plain(x):
    # a comment stays
    text = """a string

    stays"""
    return text * x


def one_line(x):
    """Say it in one line."""
    return x


def many_lines(x):
    """Say it at length.

    Args:
        x: Whatever.
    """

    y = x  # why

    return y


def followed_at_once(x):
    """Say it at length.

    And go on."""
    return x


def nothing_else(x):
    """Do nothing."""


@kept
@functools.cache
def decorated(x):
    """Be decorated."""
    return x


def outer(x):
    """Hold another."""

    def inner(y):
        """Be inside."""
        return y

    return inner(x)


class Thing:
    """A thing.

    Attributes:
        x: Whatever.
    """

    x = 1

    def method(self):
        """Do it."""
        return self.x

    def empty(self):
        """Do nothing."""

    @property
    def read(self):
        """Read it."""
        return 2

    class Inner:
        """Nothing but a name."""


class Empty(Exception):
    """Nothing but a name."""


TABLE = [
    (one_line, "def one_line(x):\n    return x"),
    (many_lines, "def many_lines(x):\n    y = x  # why\n\n    return y"),
    (followed_at_once, "def followed_at_once(x):\n    return x"),
    (nothing_else, "def nothing_else(x):\n    ..."),
    (decorated, "@kept\n@functools.cache\ndef decorated(x):\n    return x"),
    (outer, "def outer(x):\n    def inner(y):\n        return y\n\n    return inner(x)"),
    (Thing.method, "def method(self):\n    return self.x"),
    (Thing().method, "def method(self):\n    return self.x"),
    (Thing.read.fget, "@property\ndef read(self):\n    return 2"),
    (Empty, "class Empty(Exception):\n    ..."),
    (
        Thing,
        "class Thing:\n"
        "    x = 1\n\n"
        "    def method(self):\n        return self.x\n\n"
        "    def empty(self):\n        ...\n\n"
        "    @property\n    def read(self):\n        return 2\n\n"
        "    class Inner:\n        ...",
    ),
]


@pytest.mark.parametrize(
    ("thing", "expected"), TABLE, ids=lambda value: getattr(value, "__name__", "")
)
def test_docstrings_go_and_all_else_stays(thing: Callable, expected: str):
    assert source_of(thing) == expected


def test_other_strings_and_comments_stay():
    assert source_of(plain) == inspect.getsource(plain).rstrip("\n")


@pytest.mark.parametrize("thing", [parallel_apply, DataParallel, timeline_picture])
def test_the_courses_own_code_stays_valid_and_does_the_same(thing: Callable):
    shown, stored = ast.parse(source_of(thing)), ast.parse(inspect.getsource(thing))
    assert not [node for node in ast.walk(shown) if has_docstring(node)]
    for node in ast.walk(stored):
        if has_docstring(node):
            node.body = node.body[1:] or [ast.Expr(ast.Constant(...))]
    assert ast.dump(shown) == ast.dump(stored)


def has_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None


def test_several_are_printed_with_a_line_between(capsys: pytest.CaptureFixture):
    show_source(one_line, nothing_else)
    assert capsys.readouterr().out == (
        "def one_line(x):\n    return x\n\ndef nothing_else(x):\n    ...\n"
    )
    with pytest.raises(TypeError):  # it has no source in Python
        show_source(len)
