"""A class hands in: each is reported truly, within the limits, and stops nobody else."""

import csv
import inspect
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from processes import nothing_left

from mpcourse.commands.clean_copies import clean_copy
from mpcourse.commands.grading import gradebook as grade
from mpcourse.commands.grading.network import closed_network
from mpcourse.commands.pages import NOTEBOOKS
from mpcourse.exercises import scatter_and_gather as solutions

NAME = "01_scatter_and_gather.ipynb"
PAGE = NOTEBOOKS / NAME
EXERCISES = ["scatter", "scatter_nest", "gather", "mean"]
TIME_S, MEMORY_GB = 40, 3
WRONG_SCATTER = "def my_scatter(rows, count):\n    return list(rows.tensor_split(count))"
REDEFINED = """
def check_scatter(attempt):
    print("✓ correct")


import mpcourse.exercises.exercise as judging
judging.same = lambda *results: True
judging.Exercise._judge.__code__ = (lambda self, attempt: None).__code__
vars(check_mean)['cases'] = ()
"""
EATS = """
import time
eaten = []
for _ in range(80):  # 5 GB, should nobody stop it
    eaten.append(bytearray(b"1") * 2**26)
    time.sleep(0.03)
"""
LEAVES = """
import os, subprocess
subprocess.Popen(["sleep", "1000"], start_new_session=True)
os._exit(3)
"""
STUBBORN = """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""
ENDLESS = "def my_scatter(batch, num_devices):\n    while True:\n        pass"
pytestmark = pytest.mark.slow


def whole() -> NotebookNode:
    return nbformat.reads(clean_copy(PAGE.read_text(encoding="utf-8")), as_version=4)


def solved(notebook: NotebookNode) -> NotebookNode:
    for cell in notebook.cells:
        if "exercise" in cell.metadata.get("tags", []):
            name = cell.source.split("(")[0].removeprefix("def ")
            cell.source = inspect.getsource(getattr(solutions, name))
    return notebook


def short(notebook: NotebookNode | None = None) -> NotebookNode:
    """A solved copy without what stands between the exercises; the texts stay."""
    notebook = solved(whole()) if notebook is None else notebook
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    asked = [c for c in code if {"exercise", "check"} & set(c.metadata.get("tags", []))]
    kept = [id(c) for c in code[:2] + asked]
    notebook.cells = [c for c in notebook.cells if c.cell_type != "code" or id(c) in kept]
    return notebook


def position_of(notebook: NotebookNode, words: str) -> int:
    [found] = [i for i, cell in enumerate(notebook.cells) if cell.source.startswith(words)]
    return found


def with_cell_after(words: str, source: str, notebook: NotebookNode | None = None) -> NotebookNode:
    notebook = short() if notebook is None else notebook
    notebook.cells.insert(position_of(notebook, words) + 1, new_code_cell(source))
    return notebook


def hanging() -> NotebookNode:
    """A cell that hangs, and later one that ends the kernel."""
    notebook = with_cell_after("def my_scatter(", "while True:\n    pass")
    return with_cell_after("check_scatter_nest(", LEAVES, notebook)


def tampering() -> NotebookNode:
    """Wrong answers, and whatever would make them seem right."""
    notebook = short()
    notebook.cells[position_of(notebook, "def my_scatter(")].source = WRONG_SCATTER
    notebook.cells[position_of(notebook, "def my_gather(")].source = "def my_gather(outputs:"
    notebook.cells[position_of(notebook, "def my_mean(")].source = "my_mean = 1 / 0"
    notebook.cells.insert(position_of(notebook, "check_scatter(") - 1, new_code_cell(REDEFINED))
    notebook.cells[position_of(notebook, "check_mean(")].source = 'print("✓ correct")'
    return notebook


def stubborn() -> NotebookNode:
    notebook = with_cell_after("check_scatter(", STUBBORN)
    notebook.cells[position_of(notebook, "def my_scatter(")].source = ENDLESS
    return notebook


def old() -> NotebookNode:
    """Before there were editions: other words, another last exercise."""
    notebook = short()
    del notebook.metadata["mpcourse"]
    del notebook.cells[position_of(notebook, "def my_mean(") :]
    tags = {"tags": ["check"]}
    notebook.cells.append(new_code_cell("check_median(my_median)", metadata=tags))
    notebook.cells.append(new_markdown_cell("## The end"))
    return notebook


HANDED_IN: dict[str, Callable[[], NotebookNode]] = {
    f"Zoë 李 =1+1/my_notebooks/{NAME}": short,
    f"empty/{NAME}": lambda: short(whole()),
    f"hanging_{NAME}": hanging,
    f"hungry/{NAME}": lambda: with_cell_after("check_scatter(", EATS),
    f"stubborn/{NAME}": stubborn,
    f"tampering/{NAME}": tampering,
    "old/02_scatter_and_gather.ipynb": old,
}


class Graded(NamedTuple):
    folder: Path
    out: Path
    printed: str

    @property
    def records(self) -> dict[str, dict]:
        found = json.loads((self.out / "results.json").read_text(encoding="utf-8"))
        return {record["learner"]: record for record in found}

    def states(self, learner: str) -> list[str]:
        judged = self.records[learner]["judged"]
        assert list(judged) == EXERCISES
        return [state for state, _ in judged.values()]

    def message(self, learner: str, exercise: str) -> str:
        return self.records[learner]["judged"][exercise][1]

    def notes(self, learner: str) -> list[str]:
        return self.records[learner]["notes"]


def run(folder: Path, out: Path, *more: str) -> int:
    limits = ["--time-limit-s", str(TIME_S), "--memory-gb", str(MEMORY_GB), "--jobs", "2"]
    return grade.main([str(folder), "--out", str(out), *limits, *more])


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    """The class, graded; no process and no file is left behind."""
    folder = tmp_path_factory.mktemp("class")
    for name, make in HANDED_IN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(nbformat.writes(make()), encoding="utf-8")
    text = nbformat.writes(short())
    (folder / f"half_{NAME}").write_text(text[: len(text) // 2], encoding="utf-8")
    (folder / "notes.ipynb").write_text("nothing", encoding="utf-8")
    out = tmp_path_factory.mktemp("results") / "deep"
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as printed:
        printed.reconfigure = lambda **_: None
        with nothing_left(tmp_path_factory.mktemp("left") / "tmp", patch):
            patch.setattr("sys.stdout", printed)
            assert run(folder, out) == 0
        return Graded(folder, out, printed.getvalue())


@pytest.mark.parametrize(
    ("learner", "state"), [("Zoë 李 =1+1", "correct"), ("empty", "not attempted")]
)
def test_a_perfect_copy_is_correct_and_an_untouched_one_not_attempted(
    graded: Graded, learner: str, state: str
):
    assert graded.states(learner) == [state] * 4
    assert graded.notes(learner) == []


def test_wrong_answers_are_explained_and_replaced_checks_do_not_count(graded: Graded):
    assert graded.states("tampering") == ["not yet", "correct", "not yet", "not yet"]
    namespace: dict = {}
    exec(WRONG_SCATTER, namespace)
    said = "\n".join(solutions.check_scatter(namespace["my_scatter"]).lines)
    assert said in graded.message("tampering", "scatter")
    assert "SyntaxError: incomplete input (line 1)" in graded.message("tampering", "gather")
    assert "ZeroDivisionError: division by zero" in graded.message("tampering", "mean")


def test_a_cell_that_hangs_is_stopped_and_a_kernel_that_ends_leaves_what_was_judged(
    graded: Graded,
):
    assert graded.states("hanging") == ["correct"] * 2 + ["not judged"] * 2
    assert graded.notes("hanging")[0].endswith(f"was stopped after {TIME_S / 2:.0f} s")
    assert "ended its kernel (exit status 3)" in graded.message("hanging", "mean")


def test_a_cell_that_heeds_no_interrupt_leaves_what_was_judged(graded: Graded):
    assert graded.states("stubborn") == ["not yet"] + 3 * ["not judged"]
    assert "had not returned after 10 seconds" in graded.message("stubborn", "scatter")
    assert "heeded no interrupt" in graded.message("stubborn", "mean")


def test_a_page_that_eats_memory_is_ended(graded: Graded):
    assert graded.states("hungry") == ["correct"] + 3 * ["not judged"]
    assert f"took more than {MEMORY_GB} GB of memory at cell" in graded.message("hungry", "mean")


def test_replaced_checks_are_reported(graded: Graded):
    notes = "\n".join(graded.notes("tampering"))
    assert "redefines check_scatter: the course's own was used" in notes
    assert "replaced mpcourse.exercises.exercise.same of the course" in notes
    assert "replaced mpcourse.exercises.exercise.Exercise._judge of the course" in notes
    assert "replaced check of my_mean.cases of the course" in notes
    assert "the check cell check_mean(my_mean) is missing or changed" in notes


def test_half_a_file_is_reported_as_such(graded: Graded):
    assert graded.states("half") == ["not judged"] * 4
    assert graded.message("half", "mean").startswith("half saved? The file is no whole notebook")


def test_an_older_edition_is_graded_where_its_exercises_still_exist(graded: Graded):
    assert graded.states("old") == ["correct"] * 3 + ["not judged"]
    assert graded.message("old", "mean") == "no cell sets my_mean"
    notes = "\n".join(graded.notes("old"))
    assert "of an older edition, or its texts were edited" in notes
    assert "calls check_median: the page has no such exercise today" in notes


def test_a_file_that_is_no_page_is_listed(graded: Graded):
    [record] = [r for r in graded.records.values() if r["file"] == "notes.ipynb"]
    assert record["judged"] == {}
    assert record["notes"] == [grade.NO_PAGE]


def test_the_table_has_a_row_for_each_exercise_and_note(graded: Graded):
    text = (graded.out / "results.csv").read_bytes().decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    own = [row for row in rows if row["learner"] == "tampering" and row["exercise"]]
    assert [row["exercise"] for row in own] == EXERCISES
    assert [row["state"] for row in own] == graded.states("tampering")
    assert {row["page"] for row in own} == {"01_scatter_and_gather"}
    assert [r["message"] for r in rows if r["state"] == "note"].count(grade.NO_PAGE) == 1


def test_what_was_graded_is_not_graded_again(graded: Graded, monkeypatch: pytest.MonkeyPatch):
    asked = []
    before = (graded.out / "results.json").read_bytes()
    monkeypatch.setattr(grade, "grade_one", lambda submission, *_: asked.append(submission.file))
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    assert run(graded.folder, graded.out) == 0
    assert asked == []
    assert (graded.out / "results.json").read_bytes() == before


def test_the_network_is_closed_where_it_can_be(graded: Graded):
    page = (graded.out / "results.html").read_text(encoding="utf-8")
    assert ("without network" in page) == bool(closed_network())
