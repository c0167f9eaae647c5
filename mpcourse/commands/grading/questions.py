"""What a page of the course asks, and which cells of a learner's copy answer it.

The learner's own cells go into the course's page: what stands in place of an exercise's cell, and
what was added. All others are the page's own. Of all these the ones run whose names an answer
needs; the page's measurements do not. Source: the documentation of ast and symtable.
"""

import ast
import functools
import json
import re
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from mpcourse.commands.clean_copies import STANDS_IN, edition_of, folded

ANY = "*"  # stands for the names that `from ... import *` binds


class NoNotebook(ValueError):
    """The file cannot be read as a notebook; says why."""


@dataclass(frozen=True)
class Question:
    """One exercise of a page."""

    name: str  # what its check is called, without `check_`
    check: str
    source: str  # the page's check cell, the call that judges
    asked: tuple[str, ...]  # names that the learner is to give a value, in the order of the call
    given: tuple[str, ...]  # other names that the call takes; the page sets them


@dataclass(frozen=True)
class Cell:
    """One step of a graded run: a cell to run or, with a question, an exercise to judge."""

    source: str
    where: str
    question: Question | None = None
    is_theirs: bool = False

    @functools.cached_property
    def touched(self) -> set[str]:
        """Names that the cell binds or, if it is theirs, changes by a statement at its top."""
        if not self.is_theirs:
            return bound_names(self.source)
        if "get_ipython()" in plain_python(self.source):
            return set(re.findall(r"\w+", self.source))
        try:
            tree = ast.parse(plain_python(self.source))
        except (SyntaxError, ValueError, RecursionError):
            return set(re.findall(r"\w+", self.source))
        imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        nodes = (node for each in _changed(tree.body) for node in ast.walk(each))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return bound_names(self.source) | names - imported

    @functools.cached_property
    def used(self) -> set[str]:
        """Names that the cell takes from elsewhere, in its functions as well."""
        try:
            tables = [symtable.symtable(plain_python(self.source), "cell", "exec")]
        except (SyntaxError, ValueError, RecursionError):
            return set()
        own = set() if self.is_theirs else self.touched
        found = {symbol.get_name() for symbol in tables[0].get_symbols()} - own
        while tables:
            table = tables.pop()
            tables += table.get_children()
            found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        return found


def _changed(statements: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    """What statements may change without binding it: `x[0] = 1`, `del x[0]`, `x.f()`, `f(x)`."""
    for each in statements:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            if getattr(each.value.func, "id", "") not in ("print", "display"):
                function, *given = ast.iter_child_nodes(each.value)
                yield from given if isinstance(function, ast.Name) else [function, *given]
        elif isinstance(each, ast.Assign | ast.AugAssign | ast.Delete):
            targets = [each.target] if isinstance(each, ast.AugAssign) else each.targets
            yield from (t.value for t in targets if isinstance(t, ast.Attribute | ast.Subscript))
        for name in ("body", "orelse", "finalbody", "handlers"):
            yield from _changed(getattr(each, name, []))


def read_copy(path: Path) -> NotebookNode:
    """Read a notebook, in whichever format; raises NoNotebook."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise NoNotebook(f"the file cannot be read: {type(error).__name__}") from None
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoNotebook(f"half saved? The file is no whole notebook: {error}") from None
    try:
        copy = nbformat.reads(text, as_version=4)
        nbformat.validate(copy)
    except Exception as error:  # nbformat raises what its reading stumbles over
        words = str(error).split("\n")[0]
        raise NoNotebook(f"the file is no notebook: {type(error).__name__}: {words}") from None
    return copy


def code_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """Position, from 1 over all cells, and cell: of the cells with code in them."""
    for position, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "code" and cell.source.strip():
            yield position, cell


def exercises_of(page: NotebookNode) -> list[Question]:
    """The exercises of a page of the course, in order; its check cells are tagged `check`."""
    cells = [(tags_of(cell), cell.source) for _, cell in code_cells(page)]
    asked = {name for tags, source in cells if "exercise" in tags for name in bound_names(source)}
    return [_exercise(source, asked) for tags, source in cells if "check" in tags]


def _exercise(source: str, asked: set[str]) -> Question:
    call = ast.parse(source).body[-1].value
    check = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
    nodes = (node for each in call.args for node in ast.walk(each))
    names = dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name))
    return Question(
        name=check.removeprefix("check_"),
        check=check,
        source=source,
        asked=tuple(name for name in names if name in asked),
        given=tuple(name for name in names if name not in asked),
    )


def tags_of(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
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
    found = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    return found | {ANY} if re.search(r"^from .* import \*", source, re.MULTILINE) else found


def added_to(source: str, ours: set[str]) -> str:
    """The statements at a cell's top that give values to names, to none of ours."""
    try:
        body = ast.parse(plain_python(source)).body
        for each in body:
            if isinstance(each, ast.Import | ast.ImportFrom):  # without names it binds none
                each.names = [
                    a for a in each.names if (a.asname or a.name.split(".")[0]) not in ours
                ]
        bound = [(each, bound_names(each)) for each in map(ast.unparse, body)]
    except (SyntaxError, ValueError, RecursionError):
        return ""
    return "\n".join(each for each, names in bound if names and not names & ours)


def meaning(source: str) -> str:
    """A cell without layout and comments: equal for cells that do the same, word for word."""
    try:
        return ast.dump(ast.parse(plain_python(source)))
    except (SyntaxError, ValueError, RecursionError):
        return source.strip()


def merged(copy: NotebookNode, page: NotebookNode) -> tuple[list[Cell], list[str]]:
    """The cells that a graded run takes, in order, and what an instructor has to know of the copy.

    An exercise is judged where its check stands; if a cell below sets its names anew, at the end.
    Of a changed cell of the page those names are taken that the page does not have.
    """
    own = [cell for _, cell in code_cells(page)]
    questions = {question.source: question for question in exercises_of(page)}
    asked = {name for question in questions.values() for name in question.asked}
    ours = asked.union(*(bound_names(c.source) for c in own if "exercise" not in tags_of(c)))
    places = {meaning(cell.source): place for place, cell in enumerate(own)}
    by_id = {cell.id: place for place, cell in enumerate(own)}
    theirs: list[list[Cell]] = [[] for _ in range(len(own) + 1)]  # those behind each cell of ours
    at, changed = 0, []
    for position, cell in code_cells(copy):
        place = by_id.get(cell.get("id"), places.get(meaning(cell.source)))
        at = at if place is None else place + 1
        if place is None or "exercise" in tags_of(own[place]):
            theirs[at].append(Cell(cell.source, f"cell {position}", is_theirs=True))
        elif meaning(cell.source) != meaning(own[place].source):
            if at > 1 and STANDS_IN not in cell.source:  # the first one differs in a fork
                changed.append(str(position))
            added = added_to(cell.source, ours)
            theirs[at].append(Cell(added, f"cell {position}", is_theirs=True))
    cells, late = theirs[0], []
    for place, cell in enumerate(own):
        if question := questions.get(cell.source):
            below = {name for each in theirs[place + 1 :] for c in each for name in c.touched}
            (late if below & set(question.asked) else cells).append(Cell("", "the check", question))
        elif "exercise" not in tags_of(cell):
            cells.append(Cell(cell.source, f"the page's cell {place + 1}"))
        cells += theirs[place + 1]
    notes = [*_edition(copy, page)]
    if changed:
        notes.append(f"cells of the page were changed, its own were used: {', '.join(changed)}")
    return needed_for(asked, cells + late), notes


def needed_for(names: set[str], cells: Sequence[Cell]) -> list[Cell]:
    """Of the cells those that set or change the names, or what these need in turn."""
    needed, before = {*names, ANY}, set()
    while needed != before:
        before = set(needed)
        kept = [each for each in cells if each.question or each.touched & needed]
        needed = needed.union(*(each.used for each in kept))
    return kept


def given_by(page: NotebookNode, name: str) -> str:
    """The source that gives a name its value, of the page's own cells."""
    cells = [Cell(each.source, "") for _, each in code_cells(page) if "check" not in tags_of(each)]
    return "\n".join(cell.source for cell in needed_for({name}, cells))


def answer_of(cells: Sequence[Cell], question: Question) -> str:
    """What a learner's cells say that set the names of an exercise, without layout and comments."""
    own = [each for each in cells if each.is_theirs and each.touched & set(question.asked)]
    return "\n".join(sorted(meaning(each.source) for each in own))


def _edition(copy: NotebookNode, page: NotebookNode) -> Iterator[str]:
    carried = copy.metadata.get("mpcourse", {})
    edition = carried.get("edition") if isinstance(carried, dict) else None
    if edition == edition_of(page):
        return
    theirs = {cell.source for cell in copy.cells}
    texts = [c.source for c in page.cells[1:] if c.cell_type == "markdown"]
    texts = [text for text in texts if not {text, folded(text)} & theirs]
    if edition or texts:
        yield f"of another edition, or edited: {len(texts)} texts of today's page are not in it"
