"""Show a reference implementation on a page: its code, without docstrings."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def source_of(thing: Callable[..., Any]) -> str:
    """The source of a function or class without its docstrings."""
    code = textwrap.dedent(inspect.getsource(thing))
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            docstring = node.body[0]
            for number in range(docstring.lineno - 1, docstring.end_lineno):
                lines[number] = None
            if len(node.body) == 1:  # a body has to stay
                lines[docstring.lineno - 1] = " " * docstring.col_offset + "..."
            elif lines[docstring.end_lineno] == "":
                lines[docstring.end_lineno] = None
    return "\n".join(line for line in lines if line is not None)


def show_source(*things: Callable[..., Any]) -> None:
    """Print the source of functions, methods or classes, without their docstrings."""
    print("\n\n".join(source_of(thing) for thing in things))
