"""The stored pages keep the rules of `page_rules`, and every rule notices what it is there for."""

import copy
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from page_rules import DEBTS, RULES, Page, Rule

from mpcourse.commands.page_format import (
    FOLDED,
    ROOT,
    normalise,
    page_key,
    read_repository,
    to_text,
    write_address,
)
from mpcourse.commands.pages import find_pages

PAGES = find_pages([])
NAME = "01_scatter_and_gather.ipynb"
PARAGRAPH = "Seven rows go to three devices, and each device gets its rows in order. " * 5
QUESTION = "Which device gets the last row?"

Plant = Callable[[NotebookNode], object]


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_there_are_pages_and_each_number_is_used_once():
    numbers = [page.name[:2] for page in PAGES]
    assert numbers, "notebooks/ holds no page named NN_title.ipynb"
    assert len(set(numbers)) == len(numbers), f"a number stands for two pages: {numbers}"


PAGE_NAMES = re.compile(r"\b[Pp]ages?\s+((?:`\w+`(?:,\s+|\s+and\s+)?)+)")
SOURCES = [path for name in ("mpcourse", "tests/solutions", "data") for path in python_files(name)]


# Named already, and to be written; strike a page when it is there.
COMING = {
    *("quantization", "compilation"),
}


def pages_named(source: str) -> set[str]:
    """The pages that a source names, as in "pages `pipeline` and `schedules`"."""
    found = (re.findall(r"`(\w+)`", names) for names in PAGE_NAMES.findall(source))
    return {name for names in found for name in names}


def test_every_page_that_a_source_names_is_there():
    there = {page_key(page.name) for page in PAGES}
    named = {path: pages_named(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert set().union(*named.values()) >= {"pipeline", "capstone"}
    wrong = [
        f"{path}: {name}"
        for path, names in named.items()
        for name in sorted(names - there - COMING)
    ]
    assert wrong == []


def test_pages_are_found_in_a_source():
    source = "A clock (page `one`).\n\nPages `two`,\n`three` and `four`; a page of `five`."
    assert pages_named(source) == {"one", "two", "three", "four"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_keeps_the_rule(path: Path, rule: Rule):
    broken = list(rule(Page.load(path)))
    owed = DEBTS.get(rule.__name__, {}).get(page_key(path.name))
    assert owed is None or broken, "the debt is paid: strike it from page_rules.DEBTS"
    if len(broken) > (owed or 0):
        pytest.fail("\n".join([f"{path.name} {rule.__name__}: no.", *broken]), pytrace=False)


# The rules themselves: a page that keeps them all, then one planted defect each.


def good_cells() -> Iterator[NotebookNode]:
    yield new_markdown_cell("# 01 Scatter and gather\n\nAfter this page you can cut a batch.")
    yield new_code_cell(metadata={"tags": ["bootstrap"]})
    yield new_markdown_cell("A short text.")
    yield new_code_cell("7 // 3", outputs=[new_output("execute_result", {"text/plain": "2"})])
    for _ in range(16):
        yield new_markdown_cell(f"## One row more\n\n{PARAGRAPH}\n\n{QUESTION}")
        yield new_code_cell("7 // 3", outputs=[new_output("execute_result", {"text/plain": "2"})])
    yield new_code_cell("def mine(x):\n    return ...", metadata={"tags": ["exercise"]})
    yield new_markdown_cell("<details><summary>Hint</summary>Use `split`.</details>")
    yield new_code_cell("check(mine)", metadata={"tags": ["check"]})


def number_cells(notebook: NotebookNode) -> NotebookNode:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    return notebook


def good_notebook() -> NotebookNode:
    notebook = new_notebook(cells=list(good_cells()))
    for position, cell in enumerate(notebook.cells):
        cell.id = f"cell-{position}"
    write_address(notebook, read_repository(), page_name=NAME)
    return normalise(number_cells(notebook))


def as_page(notebook: NotebookNode) -> Page:
    return Page(NAME, to_text(notebook))


def broken_rules(page: Page) -> set[str]:
    return {rule.__name__ for rule in RULES if list(rule(page))}


def test_a_good_page_keeps_every_rule():
    page = as_page(good_notebook())
    assert {rule.__name__: list(rule(page)) for rule in RULES if list(rule(page))} == {}


def text(addition: str) -> Plant:
    """Plant words in the text cell after the set-up."""

    def plant(notebook: NotebookNode) -> None:
        notebook.cells[2].source += f"\n\n{addition}"

    return plant


def code(source: str, *tags: str) -> Plant:
    """Plant source, and tags, in the code cell that follows that text."""

    def plant(notebook: NotebookNode) -> None:
        notebook.cells[3].update(source=source, metadata={"tags": list(tags)} if tags else {})

    return plant


def output(kind: str, **fields: object) -> Plant:
    """Plant one more output in that code cell."""
    return lambda notebook: notebook.cells[3].outputs.append(new_output(kind, **fields))


def metadata(**entries: object) -> Plant:
    """Plant entries in the notebook's metadata."""
    return lambda notebook: notebook.metadata.update(entries)


def everywhere(old: str, new: str) -> Plant:
    """Plant the same change in the text of every cell."""

    def plant(notebook: NotebookNode) -> None:
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)

    return plant


def tag_code(share: float, *tags: str) -> Plant:
    """Plant tags in a share of the code cells, the last ones before the exercise."""

    def plant(notebook: NotebookNode) -> None:
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for cell in cells[-2 - round(share * len(cells)) : -2]:
            cell.metadata.tags = list(tags)

    return plant


def keep_cells(count: int) -> Plant:
    """Drop cells before the exercise."""

    def plant(notebook: NotebookNode) -> None:
        del notebook.cells[count - 3 : -3]
        number_cells(notebook)

    return plant


def add_cells(count: int, make: Callable[..., NotebookNode], source: str) -> Plant:
    """Plant new cells after the first text."""

    def plant(notebook: NotebookNode) -> None:
        notebook.cells[4:4] = [make(source, id=f"more-{i}") for i in range(count)]
        number_cells(notebook)

    return plant


def swap_counts(notebook: NotebookNode) -> None:
    first, second = notebook.cells[3], notebook.cells[5]
    first.execution_count, second.execution_count = 3, 2
    first.outputs[0].execution_count, second.outputs[0].execution_count = 3, 2


def drop_bootstrap(notebook: NotebookNode) -> None:
    notebook.cells[1] = new_code_cell("1", id="other", execution_count=1)


def tag_late_bootstrap(notebook: NotebookNode) -> None:
    first = notebook.cells[1]
    notebook.cells[3].update(source=first.source, metadata=copy.deepcopy(first.metadata))


def fold_in_jupyterlab_alone(notebook: NotebookNode) -> None:
    notebook.cells[3].metadata["jupyter"] = {"source_hidden": True}


def unfold_bootstrap(notebook: NotebookNode) -> None:
    notebook.cells[1].metadata = {"tags": ["bootstrap"]}


def forget(key: str) -> Plant:
    return lambda notebook: notebook.metadata.pop(key)


ERROR = {"ename": "ValueError", "evalue": "no", "traceback": []}
PLANTS: list[tuple[str, Plant]] = [
    ("is_as_the_command_saves_it", lambda nb: nb.cells[3].metadata.update(execution={"a": "b"})),
    ("is_as_the_command_saves_it", lambda nb: nb.cells[3].update(id=nb.cells[2].id)),
    ("is_as_the_command_saves_it", lambda nb: nb.cells[3].pop("id")),
    ("has_no_widget_state", metadata(widgets={"state": {}})),
    ("has_kernelspec_python3", metadata(kernelspec={"display_name": "x", "name": "x"})),
    ("has_kernelspec_python3", metadata(language_info={"name": "python", "version": "3.11"})),
    ("has_kernelspec_python3", forget("kernelspec")),
    ("has_kernelspec_python3", lambda nb: nb.update(nbformat_minor=4)),
    ("has_consecutive_execution_counts", swap_counts),
    ("has_consecutive_execution_counts", lambda nb: nb.cells[3].update(execution_count=None)),
    (
        "has_consecutive_execution_counts",
        lambda nb: nb.cells[3].outputs[0].update(execution_count=9),
    ),
    ("has_errors_only_where_tagged", output("error", **ERROR)),
    ("calls_pages_by_name", text("On page 07 it is cut.")),
    ("calls_pages_by_name", code("x = 1  # pages 03 and 04")),
    ("links_to_pages_and_headings_that_exist", text("See [it](33_nothing.ipynb).")),
    ("links_to_pages_and_headings_that_exist", text("See [it](00_start_here.ipynb#Nothing).")),
    ("has_no_stderr", output("stream", name="stderr", text="a warning")),
    ("has_no_absolute_paths", text("It lies in /home/me/course.")),
    ("has_no_absolute_paths", code("open('/tmp/file')")),
    ("has_no_absolute_paths", output("stream", name="stdout", text="C:\\Users\\me")),
    ("has_no_absolute_paths", output("display_data", data={"text/html": "<p>/root/x</p>"})),
    ("has_no_host_name", output("stream", name="stdout", text=f"on {socket.gethostname()}.")),
    ("has_one_title", everywhere("# 01 Scatter", "# 02 Scatter")),
    ("has_one_title", everywhere("# 01 Scatter and gather", "# 01 Pruning")),
    ("has_one_title", text("# A second title")),
    ("has_badges_of_its_own", everywhere(NAME, "02_parallel_apply.ipynb")),
    ("has_badges_of_its_own", lambda nb: nb.cells[0].update(source="# 01 Scatter\n\nYou can cut.")),
    ("has_badges_of_its_own", lambda nb: text(nb.cells[0].source.split("\n")[2])(nb)),
    ("has_the_bootstrap_cell", lambda nb: nb.cells[1].update(source="import sys")),
    ("has_the_bootstrap_cell", drop_bootstrap),
    ("has_the_bootstrap_cell", tag_late_bootstrap),
    ("has_35_to_60_cells", add_cells(25, new_markdown_cell, "A short text.")),
    ("has_35_to_60_cells", keep_cells(36)),
    ("has_1000_to_1800_words", add_cells(9, new_markdown_cell, PARAGRAPH)),
    ("has_1000_to_1800_words", everywhere(PARAGRAPH, "A short text.")),
    ("has_short_text_cells", text("one word more " * 27)),
    ("has_short_text_cells", text(f"<details>{'one word more ' * 27}</details>")),
    ("has_about_as_many_texts_as_code", add_cells(20, new_code_cell, "7 // 3")),
    ("has_short_code_cells", code("x = 1\n" * 9)),
    ("has_short_code_cells", code("def f(x):\n    return x\n" + "x = 1\n" * 29)),
    ("folds_plumbing_everywhere", lambda nb: nb.cells[3].metadata.update(cellView="form")),
    ("folds_plumbing_everywhere", fold_in_jupyterlab_alone),
    ("folds_plumbing_everywhere", unfold_bootstrap),
    ("asks_six_questions_in_1000_words", everywhere(QUESTION, "So it is.")),
    ("is_compared_in_at_least_half_of_its_code", tag_code(0.6, "nbval-ignore-output")),
    ("is_compared_in_at_least_half_of_its_code", tag_code(0.6, "nbval-skip")),
    ("has_short_definitions", code("def f(x):\n" + "    x = 1\n" * 25)),
    ("has_short_definitions", code("class F:\n" + "    x = 1\n" * 25)),
    ("has_a_check_after_every_exercise", lambda nb: nb.cells[-1].metadata.clear()),
    ("has_a_check_after_every_exercise", lambda nb: nb.cells.pop()),
    ("types_no_measured_numbers", text("It takes 12.3 ms.")),
    ("types_no_measured_numbers", text("It is 1.7x faster.")),
    ("types_no_measured_numbers", text("It is 2× faster; 3 × as fast.")),
    ("types_no_measured_numbers", text("It takes 4 s or 20 seconds.")),
    ("has_no_banned_words", text("Just run it.")),
    ("has_no_banned_words", text("That is simply so.")),
    ("has_no_banned_words", text("It works!")),
    ("has_no_banned_code", code("interact(f, n=3)")),
    ("has_no_banned_code", code("out = widgets.Output()")),
    ("has_no_banned_code", code("clear_output(wait=True)")),
    ("has_no_banned_code", code("from tqdm.auto import tqdm")),
    ("has_no_banned_code", code("# NBVAL_IGNORE_OUTPUT\nprint(1)")),
]


@pytest.mark.parametrize(("rule", "plant"), PLANTS, ids=[rule for rule, _ in PLANTS])
def test_a_planted_defect_breaks_its_rule_and_no_other(rule: str, plant: Plant):
    notebook = good_notebook()
    plant(notebook)
    assert broken_rules(as_page(notebook)) - {rule} <= {"is_as_the_command_saves_it"}
    assert rule in broken_rules(as_page(notebook))


def test_every_rule_has_a_planted_defect():
    assert {rule for rule, _ in PLANTS} == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("ending", ["", "\n\n"])
def test_a_stored_page_ends_in_one_newline(ending: str):
    page = Page(NAME, as_page(good_notebook()).text.rstrip("\n") + ending)
    assert broken_rules(page) == {"is_as_the_command_saves_it"}


FINE: list[Plant] = [
    text("The paper (quoted) reports 1.7x."),
    text("The shapes are 3x3, 64×64 and 2 × 2; call `f(x!)` on the 1s, $n! = 2x$."),
    text("```python\n# a comment, not a title\nprint('just!')\n```"),
    text("[Which one?](https://example.org/work/12.3ms?just=1) ![!](a.png) <!-- ! -->"),
    code("raise ValueError('no')", "raises-exception"),
    code("print('Part C:\\n')"),
    code("%%writefile program.py\n" + "x = 1\n" * 40),
    lambda nb: nb.cells[3].update(source="x = 1\n" * 40, metadata=dict(FOLDED)),
    output("display_data", data={"image/png": "iVBO/tmp/root"}),
    output("display_data", data={"text/plain": "IntSlider(value=3)"}),
    tag_code(0.4, "nbval-ignore-output"),
]


@pytest.mark.parametrize("plant", FINE)
def test_what_only_looks_like_a_defect_breaks_nothing(plant: Plant):
    notebook = good_notebook()
    plant(notebook)
    if "raises-exception" in notebook.cells[3].metadata.get("tags", []):
        notebook.cells[3].outputs = [new_output("error", **copy.deepcopy(ERROR))]
    assert broken_rules(as_page(notebook)) == set()
