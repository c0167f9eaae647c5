"""Which cells of a page its exercises need: those run with the solutions, the rest need not.

nbval runs every page whole. What is left to see is that each check agrees with the solution, for
which the measurements of the page are not needed. A cell that is left out by mistake makes a check
fail: it cannot make one pass.
"""

import ast

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

PARTS = ast.Attribute | ast.Subscript | ast.Call


def owner(node: ast.AST) -> ast.AST:
    """What `a.b[c].d()` begins with: `a`."""
    while isinstance(node, PARTS):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def bound_and_used(source: str) -> tuple[set[str], set[str]]:
    """Names that a cell gives a value to, or changes by `a.b = c` or `a.f()`; and all it reads."""
    bound, used = set(), set()
    for node in ast.walk(ast.parse(TransformerManager().transform_cell(source))):
        match node:
            case ast.Name():
                (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            case ast.FunctionDef() | ast.ClassDef():
                bound.add(node.name)
            case ast.alias():
                bound.add((node.asname or node.name).split(".")[0])
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()) | ast.Expr():
                root = owner(node.value if isinstance(node, ast.Expr) else node)
                if isinstance(root, ast.Name):
                    bound.add(root.id)
    return bound, used


def needed_by_exercises(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells that exercises and checks need, in order, and those that use an answer."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    names = [bound_and_used(cell.source) for cell in cells]
    tags = [set(cell.metadata.get("tags", [])) for cell in cells]
    answers = set().union(
        *(bound for (bound, _), own in zip(names, tags, strict=True) if "exercise" in own)
    )
    kept, wanted = [], set()
    for cell, (bound, used), own in reversed(list(zip(cells, names, tags, strict=True))):
        asked = own & {"exercise", "check"} or used & answers or cell.source.startswith("%%")
        if asked or bound & wanted:
            kept.insert(0, cell)
            wanted |= used
    return kept
