"""Pages show code as it stands in the package, without its docstrings and still valid Python."""

import ast
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from mpcourse.data_parallel import DataParallel, parallel_apply
from mpcourse.figures import timeline_picture
from mpcourse.figures.source import show_source, source_of

STORED = '''
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


def nothing_else(x):
    """Do nothing."""


@staticmethod
def outer(x):
    """Hold another.

    And go on."""
    def inner(y):
        "Be inside."
        return y

    return inner(x)


class Thing:
    """A thing.

    Attributes:
        x: Whatever.
    """

    x = 1

    @property
    async def method(self):
        """Do it."""
        return self.x

    class Inner(Exception):
        """Nothing but a name."""
'''

SHOWN = '''
def plain(x):
    # a comment stays
    text = """a string

    stays"""
    return text * x


def one_line(x):
    return x


def many_lines(x):
    y = x  # why

    return y


def nothing_else(x):
    ...


@staticmethod
def outer(x):
    def inner(y):
        return y

    return inner(x)


class Thing:
    x = 1

    @property
    async def method(self):
        return self.x

    class Inner(Exception):
        ...
'''


def test_docstrings_go_and_all_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    (tmp_path / "stored_module.py").write_text(STORED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    stored = importlib.import_module("stored_module")
    names = ("plain", "one_line", "many_lines", "nothing_else", "outer", "Thing")
    shown = SHOWN.strip().split("\n\n\n")
    assert [source_of(getattr(stored, name)) for name in names] == shown
    assert source_of(stored.Thing.method.fget).startswith("@property\nasync def method(self):")
    show_source(stored.plain, stored.one_line)
    assert capsys.readouterr().out == f"{shown[0]}\n\n{shown[1]}\n"
    with pytest.raises(TypeError):  # it has no source in Python
        show_source(len)


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
