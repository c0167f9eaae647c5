"""What a page of the course asks, and which cells of a learner's copy its answers need.

Those run whose names an answer needs, in the copy's order; measurements do not. Source: the
documentation of symtable.
"""

import functools
import re
import symtable
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from mpcourse.commands.clean_copies import CHECK, STANDS_IN, tags_of

ANY = "*"  # stands for the names that `from ... import *` binds
# `x[0] = 1`, `del x[0]`, `x.f()`; `f(x)`, and magics, which are calls in plain Python.
CHANGES = re.compile(
    r"^\s*(?:del )?(\w+) *(?:[.[]|=)"
    r"|^\s*(?!print\b|display\b|def\b)\w+(?:\(\)\.\w+)?\((.*)\)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Step:
    """One step of a graded run: a cell to run or, if something is asked, an exercise to judge."""

    source: str  # of an exercise the page's check cell, the call that judges
    name: str = ""  # "cell 3", or that of the check
    asked: tuple[str, ...] = ()  # names that the learner is to give a value, in the call's order
    is_theirs: bool = False

    @functools.cached_property
    def touched(self) -> set[str]:
        """Names that the cell binds or, if it is theirs, changes."""
        changed = changed_names(self.source) if self.is_theirs else set()
        return bound_names(self.source) | changed

    @functools.cached_property
    def used(self) -> set[str]:
        """Names that the cell takes from elsewhere, in its functions as well."""
        tables = [table_of(self.source)]
        for table in tables:
            tables += table.get_children()
        return {s.get_name() for table in tables for s in table.get_symbols() if s.is_global()}


def plain_python(source: str) -> str:
    """The cell as Python: magics and shell lines become calls, as IPython runs them."""
    return TransformerManager().transform_cell(source)


def table_of(source: str) -> symtable.SymbolTable:
    """The names of a cell; none when it does not parse."""
    try:
        return symtable.symtable(plain_python(source), "cell", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return symtable.symtable("", "cell", "exec")


def bound_names(source: str) -> set[str]:
    """Names that a cell gives a value at its top; none when it does not parse."""
    symbols = table_of(source).get_symbols()
    found = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    return found | {ANY} if re.search(r"^from .* import \*", source, re.MULTILINE) else found


def changed_names(source: str) -> set[str]:
    """Names that lines may change, as far as a look at them tells; some that they do not."""
    found = CHANGES.findall(plain_python(source))
    return {name for parts in found for part in parts for name in re.findall(r"\w+", part)}


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def exercises_of(page: NotebookNode) -> list[Step]:
    """The exercises of a page of the course, in order; its check cells are tagged `check`."""
    tagged = [(tags_of(cell), cell.source) for cell in code_cells(page)]
    asked = {name for tags, source in tagged if "exercise" in tags for name in bound_names(source)}
    exercises = []
    for source in (source for tags, source in tagged if "check" in tags):
        check, given = CHECK.search(source).groups()
        names = tuple(name for name in given.split(", ") if name in asked)
        exercises.append(Step(source, check, names))
    return exercises


def steps(copy: NotebookNode, page: NotebookNode) -> list[Step]:
    """The cells that a graded run takes, in order, each exercise behind what answers it.

    An exercise is judged where its check is first called or, if a learner's cell below sets its
    names anew, behind that cell: a solution that the page shows comes after it.
    """
    own = {cell.id: cell.source for cell in code_cells(page) if "exercise" not in tags_of(cell)}
    cells = []
    for position, cell in enumerate(copy.cells, start=1):
        if cell.cell_type == "code":
            stands_in = STANDS_IN.search(cell.source)  # for a solution, which only a clone has
            source = own.get(stands_in[1], "") if stands_in else cell.source
            is_own = cell.get("id") in own or source in own.values()
            cells.append(Step(source, f"cell {position}", is_theirs=not is_own))
    exercises = exercises_of(page)
    for exercise in exercises:
        called = re.compile(rf"\b{exercise.name}\(")
        asks = [i for i, c in enumerate(cells) if not c.asked and called.search(c.source)]
        sets = [i for i, c in enumerate(cells) if c.is_theirs and c.touched & {*exercise.asked}]
        cells.insert(max([*asks[:1], *sets]) + 1 if asks else len(cells), exercise)
    return needed_for({name for each in exercises for name in each.asked}, cells)


def needed_for(names: Iterable[str], cells: Sequence[Step]) -> list[Step]:
    """Of the cells those that set or change the names, or what these need in turn."""
    needed, before = {*names, ANY}, set()
    while needed != before:
        before = set(needed)
        kept = [each for each in cells if each.asked or each.touched & needed]
        needed = needed.union(*(each.used for each in kept if not each.asked))
    return kept


def given_by(page: NotebookNode, name: str) -> str:
    """The source that gives a name its value, of the page's own cells."""
    cells = [Step(each.source) for each in code_cells(page) if "check" not in tags_of(each)]
    return "\n".join(cell.source for cell in needed_for({name}, cells))
