"""What a page of the course asks, and where a learner's copy differs from it.

Behind `python -m mpcourse grade`. The exercises are read from the course's own page: a copy cannot
change what is asked, nor what judges it. Source: the documentation of ast and symtable.
"""

import ast
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from mpcourse.commands.clean_copies import edition_of

CHECK = re.compile(r"\bcheck_\w+")


@dataclass(frozen=True)
class Question:
    """One exercise of a page."""

    name: str  # what its check is called, without `check_`
    check: str
    source: str  # the page's check cell, the call that judges
    asked: tuple[str, ...]  # names that the learner is to give a value, in the order of the call
    given: tuple[str, ...]  # other names that the call takes; the page sets them


def code_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """Position, from 1 over all cells, and cell: of the cells with code in them."""
    for position, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "code" and cell.source.strip():
            yield position, cell


def exercises_of(page: NotebookNode) -> list[Question]:
    """The exercises of a page of the course, in order; its check cells are tagged `check`."""
    cells = [(_tags(cell), cell.source) for _, cell in code_cells(page)]
    asked = {name for tags, source in cells if "exercise" in tags for name in bound_names(source)}
    return [_exercise(source, asked) for tags, source in cells if "check" in tags]


def _exercise(source: str, asked: set[str]) -> Question:
    call = ast.parse(source).body[-1].value
    check = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
    names = dict.fromkeys(
        node.id
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
        for node in ast.walk(argument)
        if isinstance(node, ast.Name)
    )
    return Question(
        name=check.removeprefix("check_"),
        check=check,
        source=source,
        asked=tuple(name for name in names if name in asked),
        given=tuple(name for name in names if name not in asked),
    )


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def plain_python(source: str) -> str:
    """The cell as Python: magics and shell lines become calls, as IPython runs them."""
    try:
        return TransformerManager().transform_cell(source)
    except SyntaxError:
        return source


def bound_names(source: str) -> set[str]:
    """Names that a cell gives a value at its top; none when it does not parse."""
    try:
        table = symtable.symtable(plain_python(source), "cell", "exec")
    except (SyntaxError, ValueError):
        return set()
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def meaning(source: str) -> str:
    """A cell without layout and comments: equal for cells that do the same, word for word."""
    try:
        return ast.dump(ast.parse(plain_python(source)))
    except (SyntaxError, ValueError):
        return source.strip()


def differences(copy: NotebookNode, page: NotebookNode) -> Iterator[str]:
    """Sentences on what an instructor has to know of a copy before it runs."""
    yield from _edition(copy, page)
    exercises = exercises_of(page)
    ours = {meaning(cell.source) for _, cell in code_cells(page)}
    checks = {exercise.check for exercise in exercises}
    given = {name for exercise in exercises for name in exercise.given}
    theirs = set()
    for position, cell in code_cells(copy):
        theirs.add(meaning(cell.source))
        if meaning(cell.source) in ours:
            continue
        bound = bound_names(cell.source)
        for name in sorted(bound & checks - _imported(cell.source)):
            yield f"cell {position} redefines {name}: the course's own was used"
        for name in sorted(bound & given):
            yield f"cell {position} sets {name}, which the page gives, in another way"
        if "check" in _tags(cell):
            for name in sorted(set(CHECK.findall(cell.source)) - checks):
                yield f"cell {position} calls {name}: the page has no such exercise today"
    for exercise in exercises:
        if meaning(exercise.source) not in theirs:
            call = exercise.source.splitlines()[-1]
            yield f"the check cell {call} is missing or changed: the course's own was used"


def _imported(source: str) -> set[str]:
    """Names that a cell takes from `mpcourse.exercises`, under their own name."""
    try:
        body = ast.walk(ast.parse(plain_python(source)))
    except (SyntaxError, ValueError):
        return set()
    ours = [n for n in body if isinstance(n, ast.ImportFrom) and n.module == "mpcourse.exercises"]
    return {alias.name for node in ours for alias in node.names if not alias.asname}


def _edition(copy: NotebookNode, page: NotebookNode) -> Iterator[str]:
    carried = copy.metadata.get("mpcourse", {})
    edition = carried.get("edition") if isinstance(carried, dict) else None
    if edition == edition_of(page):
        return
    theirs = {cell.source for cell in copy.cells}
    texts = [c.source for c in page.cells[1:] if c.cell_type == "markdown"]
    missing = sum(text not in theirs for text in texts)
    if edition:
        yield (
            f"made from another edition of the page: {missing} of the {len(texts)} texts of "
            "today's are not in it"
        )
    elif missing:
        yield (
            f"of an older edition, or its texts were edited: {missing} of the {len(texts)} texts "
            "of today's page are not in it"
        )
