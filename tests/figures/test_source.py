"""Pages show code as it stands in the package, without its docstrings and still valid Python."""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpcourse.data_parallel import DataParallel, parallel_apply
from mpcourse.figures import timeline_picture
from mpcourse.figures.source import DOCUMENTED, show_source, source_of

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


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stored_module.py").write_text(STORED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("stored_module")
    del sys.modules["stored_module"]


def test_docstrings_go_and_all_else_stays(stored, capsys: pytest.CaptureFixture):
    for thing in (stored.one_line, stored.nothing_else, stored.outer, stored.Thing):
        same_without_docstrings(thing)
    shown = "def many_lines(x):\n    y = x  # why\n\n    return y"
    assert source_of(stored.many_lines) == shown
    plain = inspect.getsource(stored.plain).rstrip()
    assert source_of(stored.Thing.method.fget).startswith("@property\nasync def method(self):")
    show_source(stored.plain, stored.many_lines)
    assert capsys.readouterr().out == f"{plain}\n\n{shown}\n"
    with pytest.raises(TypeError):  # it has no source in Python
        show_source(len)


@pytest.mark.parametrize("thing", [parallel_apply, DataParallel, timeline_picture])
def test_the_courses_own_code_stays_valid_and_does_the_same(thing: Callable):
    same_without_docstrings(thing)


def same_without_docstrings(thing: Callable) -> None:
    shown, stored = ast.parse(source_of(thing)), ast.parse(inspect.getsource(thing))
    assert not [node for node in ast.walk(shown) if has_docstring(node)]
    for node in ast.walk(stored):
        if has_docstring(node):
            node.body = node.body[1:] or [ast.Expr(ast.Constant(...))]
    assert ast.dump(shown) == ast.dump(stored)


def has_docstring(node: ast.AST) -> bool:
    return isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None
