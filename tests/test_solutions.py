"""Every exercise has a solution: put into its cell and run with what it needs, its check agrees.

A page needs nothing here: its exercise and check cells are found by their tags, its solutions by
its number.
"""

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from slices import needed_by_exercises

from mpcourse.commands.page_format import page_key
from mpcourse.commands.pages import NOTEBOOKS, find_pages, read

SOLUTIONS = Path(__file__).parent / "solutions"
PAGES = find_pages([])
TIMEOUT_S = 300


def cells_with(tag: str, notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def text_of(cell: NotebookNode) -> str:
    """What a cell shows, as text; empty when it shows nothing."""
    return "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)


# Solutions, found by the names that they give a value to


def names_bound_by(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    found = (node for target in targets if target for node in ast.walk(target))
    return {node.id for node in found if isinstance(node, ast.Name)}


def lines_of(statement: ast.stmt) -> slice:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return slice(first - 1, statement.end_lineno)


def read_solutions(source: str) -> dict[str, str]:
    """Name -> source of the statement at the top of a module that binds it."""
    lines = source.splitlines()
    return {
        name: "\n".join(lines[lines_of(statement)])
        for statement in ast.parse(source).body
        for name in names_bound_by(statement)
    }


def explanations(source: str) -> dict[str, str]:
    """Name -> its docstring, or the string on the lines after a variable."""
    body = ast.parse(source).body
    found = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            words = ast.get_docstring(statement)
        else:
            value = getattr(following, "value", None) if isinstance(following, ast.Expr) else None
            words = getattr(value, "value", None)
        found |= {name: words or "" for name in names_bound_by(statement)}
    return found


def put_in(source: str, solutions: dict[str, str]) -> str:
    """An exercise cell with its solutions in place of its stubs; its other lines stay."""
    lines = source.split("\n")
    solved = set()
    for statement in reversed(ast.parse(source).body):
        names = names_bound_by(statement)
        is_stub = any(isinstance(n, ast.Constant) and n.value is ... for n in ast.walk(statement))
        if is_stub and not names <= solutions.keys():
            raise LookupError(f"no solution for {', '.join(sorted(names - solutions.keys()))}")
        wanted = sorted(names & solutions.keys())
        if wanted:
            lines[lines_of(statement)] = dict.fromkeys(solutions[name] for name in wanted)
            solved |= names
    if not solved:
        raise LookupError(f"no solution for any name in this exercise cell:\n{source}")
    return "\n".join(lines)


def problems_of(notebook: NotebookNode, solutions: str | None) -> Iterator[str]:
    """What is wrong between a page and the text of its solutions (None: there are none)."""
    exercises = cells_with("exercise", notebook)
    if not exercises:
        return
    if solutions is None:
        yield "has exercises but no solutions"
        return
    by_name = read_solutions(solutions)
    for cell in exercises:
        try:
            put_in(cell.source, by_name)
        except LookupError as error:
            yield str(error)
    asked = {
        n for cell in exercises for s in ast.parse(cell.source).body for n in names_bound_by(s)
    }
    for name in sorted(by_name.keys() - asked):
        yield f"{name} is asked for in no exercise cell"
    for name, words in explanations(solutions).items():
        sentences = len(re.findall(r"[.?](?=\s|$)", words))
        if not 2 <= sentences <= 5:
            yield f"{name} is explained in {sentences} sentences; 2 to 5 are wanted"


def solved(notebook: NotebookNode, solutions: str) -> NotebookNode:
    """A copy of a page with its exercises solved."""
    notebook = copy.deepcopy(notebook)
    for cell in cells_with("exercise", notebook):
        cell.source = put_in(cell.source, read_solutions(solutions))
    return notebook


def run(notebook: NotebookNode) -> None:
    """Execute a notebook in a fresh kernel of this interpreter, in the folder of the pages."""
    kernel = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    NotebookClient(
        notebook,
        km=kernel,
        timeout=TIMEOUT_S,
        extra_arguments=["--log-level=ERROR"],  # without the kernel's notes on its own sockets
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    ).execute()


def solutions_of(page: Path) -> str | None:
    path = SOLUTIONS / f"{page_key(page.name)}.py"
    return path.read_text(encoding="utf-8") if path.is_file() else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_exercise_of_the_page_has_an_explained_solution(page: Path):
    problems = list(problems_of(read(page), solutions_of(page)))
    if problems:
        name = f"tests/solutions/{page_key(page.name)}.py"
        pytest.fail("\n".join([f"{page.name} and {name}:", *problems]), pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_untouched_page_shows_that_nothing_was_attempted(page: Path):
    shown = [text_of(cell).split("\n")[0] for cell in cells_with("check", read(page))]
    assert shown == ["… not attempted"] * len(shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_check_of_the_page_calls_the_solutions_correct(page: Path):
    notebook = read(page)
    if not cells_with("exercise", notebook):
        pytest.skip("the page has no exercises")
    solutions = solutions_of(page)
    assert solutions is not None, f"tests/solutions/{page_key(page.name)}.py is missing"
    notebook = solved(notebook, solutions)
    run(new_notebook(cells=needed_by_exercises(notebook), metadata=notebook.metadata))
    shown = {cell.source: text_of(cell) for cell in cells_with("check", notebook)}
    assert shown
    wrong = {source: text for source, text in shown.items() if not text.startswith("✓ correct")}
    assert not wrong, "\n\n".join(f"{source}\n{text}" for source, text in wrong.items())


def test_every_solutions_file_belongs_to_a_page():
    names = {path.stem for path in SOLUTIONS.glob("*.py")} - {"__init__"}
    assert names <= {page_key(page.name) for page in PAGES}


# What these tests find, on small notebooks


def page_with(*exercises: str) -> NotebookNode:
    tags = {"tags": ["exercise"]}
    return new_notebook(cells=[new_code_cell(source, metadata=tags) for source in exercises])


STUB = 'def f(x):\n    """Double x."""\n    return ...'
SOLUTION = 'import torch\n\n\ndef f(x):\n    """Twice. Not x + 2."""\n    return 2 * x\n'
TWO = 'a = 1\nb = 2\n"""One. Two. Three."""\n'


@pytest.mark.parametrize(
    ("cell", "solutions", "expected"),
    [
        (STUB, SOLUTION, 'def f(x):\n    """Twice. Not x + 2."""\n    return 2 * x'),
        ("@g\ndef f(x):\n    return ...", "@h\ndef f(x):\n    pass", "@h\ndef f(x):\n    pass"),
        ("# choose\na = ...  # 1 or 2\nb: int = ...", TWO, "# choose\na = 1\nb = 2"),
        ("a, b = ..., ...", "a, b = (\n    1,\n    2,\n)", "a, b = (\n    1,\n    2,\n)"),
        ("a, b = ..., ...", TWO, "a = 1\nb = 2"),
        ("n = 3\na = 7  # change me\nprint(n)", TWO, "n = 3\na = 1\nprint(n)"),
        ("class f:\n    x = ...", "class f:\n    x = 1", "class f:\n    x = 1"),
    ],
)
def test_a_solution_replaces_the_stub_and_nothing_else(cell: str, solutions: str, expected: str):
    assert put_in(cell, read_solutions(solutions)) == expected


def test_what_an_exercise_needs_runs_with_it_and_nothing_else():
    sources = [
        "import os, sys",
        "a = sys.argv",  # wanted by the exercise's second cell
        "a.append(1)",  # changes it
        "slow = os.times()",
        "%%writefile x\n???",  # what a later cell may run
        "print(slow)",
    ]
    cells = [new_code_cell(source) for source in sources]
    tagged = [
        new_code_cell(source, metadata={"tags": [tag]})
        for tag, source in (("exercise", "def f(x):\n    return x + a"), ("check", "check(f)"))
    ]
    user = new_code_cell("f(2)")
    kept = needed_by_exercises(new_notebook(cells=[*cells, *tagged, user]))
    assert kept == [cells[0], cells[1], cells[2], cells[4], *tagged, user]


@pytest.mark.parametrize(
    ("exercises", "solutions", "problem"),
    [
        ([STUB], None, "has exercises but no solutions"),
        ([STUB], "def g(x):\n    '''One. Two.'''", "no solution for f"),
        ([STUB, "a = ..."], SOLUTION, "no solution for a"),
        (["a = ...\nb = ..."], "a = 1\n'''One. Two.'''", "no solution for b"),
        (["print(1)"], SOLUTION, "no solution for any name in this exercise cell:\nprint(1)"),
        ([STUB], SOLUTION + "\nc = 1\n'''One. Two.'''", "c is asked for in no exercise cell"),
        ([STUB], "def f(x): return 2 * x", "f is explained in 0 sentences; 2 to 5"),
        ([STUB], "def f(x): 'Twice.'", "f is explained in 1 sentences; 2 to 5"),
        ([STUB], "def f(x): 'A. B. C. D. E? F.'", "f is explained in 6 sentences; 2 to 5"),
        (["a = ..."], "a = 1\nprint(a)", "a is explained in 0 sentences; 2 to 5"),
    ],
)
def test_what_is_missing_between_a_page_and_its_solutions_is_said(
    exercises: list[str], solutions: str | None, problem: str
):
    assert any(problem in found for found in problems_of(page_with(*exercises), solutions))


def test_a_page_and_solutions_that_fit_have_no_problem():
    assert list(problems_of(page_with(STUB), SOLUTION)) == []
    assert list(problems_of(page_with("a = ..."), "a = 1\n'''One. Two.'''")) == []
    assert list(problems_of(page_with(), None)) == []
