"""What grading is made of: whose notebook is which page's, what differs, what people read."""

import csv
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from processes import nothing_left

from mpcourse import exercises as all_exercises
from mpcourse.commands.clean_copies import clean_copy, edition_of
from mpcourse.commands.grading import gradebook as grade
from mpcourse.commands.grading.questions import differences, exercises_of
from mpcourse.commands.grading.report import SIGNS, in_words, line_of, write_csv, write_html
from mpcourse.commands.grading.submissions import clean, find_submissions
from mpcourse.commands.grading.watch import Limits, Record
from mpcourse.commands.pages import NOTEBOOKS, find_pages
from mpcourse.commands.setup import ROOT
from mpcourse.exercises import exercise as engine

PAGES = find_pages([])
CHECK, EXERCISE = {"tags": ["check"]}, {"tags": ["exercise"]}


# Whose is it, and of which page?


@pytest.mark.parametrize(
    ("file", "learner", "page"),
    [
        ("anna/07_pipeline.ipynb", "anna", "07_pipeline"),
        ("anna/my_notebooks/07_pipeline.ipynb", "anna", "07_pipeline"),
        ("anna_07_pipeline.ipynb", "anna", "07_pipeline"),
        ("Zoë 李/07_pipeline-Copy1.ipynb", "Zoë 李", "07_pipeline"),
        ("anna/11_torch_pipelining (2).ipynb", "anna", "11_torch_pipelining"),
        ("anna/05_pipeline.new.ipynb", "anna", "07_pipeline"),  # as an older edition was numbered
        ("07_pipeline.ipynb", "class", "07_pipeline"),
        ("anna/pipelines.ipynb", "anna", None),
        ("anna/07_pipelines.ipynb", "anna", None),
    ],
)
def test_a_notebook_has_a_learner_and_a_page(
    tmp_path: Path, file: str, learner: str, page: str | None
):
    path = tmp_path / "class" / file
    path.parent.mkdir(parents=True)
    path.touch()
    [found] = find_submissions(tmp_path / "class", PAGES)
    assert (found.learner, found.page and found.page.stem) == (learner, page)
    assert (found.file, found.path) == (file, path)


def test_what_jupyter_keeps_for_itself_is_passed_over(tmp_path: Path):
    for folder in ("anna", "anna/.ipynb_checkpoints", ".trash"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "07_pipeline.ipynb").touch()
    assert [s.file for s in find_submissions(tmp_path, PAGES)] == ["anna/07_pipeline.ipynb"]


# What is asked, and where a copy differs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_exercise_of_a_page_has_a_check_and_an_answer(page: Path):
    exercises = exercises_of(nbformat.read(page, as_version=4))
    assert len({exercise.name for exercise in exercises}) == len(exercises) > 2
    for exercise in exercises:
        assert callable(getattr(all_exercises, exercise.check))
        assert exercise.asked


def page() -> nbformat.NotebookNode:
    return new_notebook(
        cells=[
            new_markdown_cell("# 01 Title"),
            new_code_cell("from mpcourse.exercises import check_plan"),
            new_markdown_cell("What now?"),
            new_code_cell("my_plan = ...", metadata=EXERCISE),
            new_code_cell("check_plan(my_plan, task)", metadata=CHECK),
            new_code_cell("task = 1"),
        ]
    )


def test_an_exercise_has_what_is_asked_and_what_is_given():
    [exercise] = exercises_of(page())
    assert (exercise.name, exercise.check) == ("plan", "check_plan")
    assert (exercise.asked, exercise.given) == (("my_plan",), ("task",))


@pytest.mark.parametrize(
    ("position", "source", "note"),
    [
        (3, "my_plan = 3", None),
        (4, "check_plan(my_plan,  task)  # at last", None),
        (1, "from mpcourse.exercises import check_plan as a, check_plan", None),
        (4, "check_plan(3, task)", "the check cell check_plan(my_plan, task) is missing or"),
        (3, "def check_plan(*_): ...", "cell 4 redefines check_plan: the course's own was used"),
        (3, "from mine import check_plan", "cell 4 redefines check_plan"),
        (3, "with f() as g:\n    import a.b as check_plan", "cell 4 redefines check_plan"),
        (3, "with f() as check_plan: ...", "cell 4 redefines check_plan"),
        (3, "def f(): check_plan = 1", None),
        (3, "x = (", None),
        (3, "%matplotlib inline\ncheck_plan = print", "cell 4 redefines check_plan"),
        (5, "task = 2", "cell 6 sets task, which the page gives, in another way"),
        (4, "check_plan(my_plan, task); check_old(1)", "cell 5 calls check_old: the page has no"),
        (2, "What then?", "another edition of the page: 1 of the 1 texts of today's are not in"),
    ],
)
def test_what_differs_is_said(position: int, source: str, note: str | None):
    copy = page()
    copy.cells[position].source = source
    copy.metadata["mpcourse"] = {"edition": "of old" if position == 2 else edition_of(page())}
    notes = list(differences(copy, page()))
    if note is None:
        assert notes == []
    else:
        assert any(note in each for each in notes), notes


def test_a_copy_without_an_edition_is_known_by_its_texts():
    copy = page()
    assert list(differences(copy, page())) == []
    copy.cells[2].source = "What then?"
    assert "of an older edition, or its texts were edited" in next(differences(copy, page()))


def test_an_edition_does_not_depend_on_outputs_address_or_answers():
    text = (NOTEBOOKS / "01_scatter_and_gather.ipynb").read_text(encoding="utf-8")
    moved = text.replace("/OWNER/", "/someone/")
    assert moved != text
    carried = [
        nbformat.reads(clean_copy(t), as_version=4).metadata["mpcourse"] for t in (text, moved)
    ]
    assert carried[0] == carried[1] == {"edition": edition_of(nbformat.reads(text, 4))}


# What people read


def record(**changes) -> Record:
    facts = {"learner": "<b>Anna</b>", "file": "a/01_page.ipynb", "page": "01_page.ipynb"}
    judged = {"sum": ("not yet", "=HYPERLINK(1)\n<script>"), "mean": ("correct", "All & more")}
    return Record(**{**facts, "judged": judged, "notes": ['+1, "quoted"'], **changes})


def test_a_spreadsheet_computes_nothing_and_reads_utf_8():
    text = write_csv([record(learner="@Zoë")])
    assert text[0] == "\ufeff"
    rows = list(csv.reader(io.StringIO(text[1:], newline="")))
    assert rows[1] == [
        "'@Zoë",
        "01_page",
        "sum",
        "not yet",
        "'=HYPERLINK(1)\n<script>",
        "a/01_page.ipynb",
    ]
    assert rows[3][3:5] == ["note", '\'+1, "quoted"']


def test_the_page_to_read_holds_no_foreign_code_and_needs_nothing_else():
    text = write_html([record()], "at most 5 s")
    assert "<script" not in text
    assert "<b>Anna" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;Anna" in text
    assert not re.search(r"""(?:src|href)=["'](?!#)""", text)
    assert "1 of 2*" in text


def test_each_state_has_the_sign_that_the_pages_show():
    assert {**SIGNS, **engine.SIGNS} == SIGNS
    assert f"{SIGNS['not yet']} not yet" in line_of(record()).split("\n")[1]
    assert line_of(record()).count("\n") == 3


def test_the_end_counts_learners_notebooks_and_states():
    assert in_words([record()]) == "1 learner, 1 notebook: 1 correct, 1 not yet."
    both = in_words([record(), record(judged={})])
    assert both == "1 learner, 2 notebooks: 1 correct, 1 not yet."
    assert in_words([record(judged={})]) == "1 learner, 1 notebook: no exercises."


def test_codes_that_move_a_cursor_are_taken_out():
    assert clean("a\x1b[2Jb\nc\r\udc80") == "a\ufffd[2Jb\nc\ufffd\ufffd"


@pytest.mark.parametrize(
    ("key", "limits", "stopped", "holds"),
    [
        ("k", Limits(5, 1), "", True),
        ("k", Limits(9, 1), "", True),
        ("k", Limits(5, 1), "too long", True),
        ("k", Limits(9, 1), "too long", False),
        ("other", Limits(5, 1), "", False),
    ],
)
def test_a_record_holds_while_nothing_it_rests_on_changes(
    key: str, limits: Limits, stopped: str, holds: bool
):
    assert record(key="k", limits=[5, 1], stopped=stopped).holds_for(key, limits) == holds


# Bad input, before anything runs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone"], "gone is not there: name the folder that holds the learners' notebooks"),
        (["a.txt"], "a.txt is no folder"),
        (["empty"], "empty holds no notebooks: LEARNER/NN_page.ipynb or LEARNER_NN_page.ipynb"),
        (["full", "--time-limit-s", "0"], "--time-limit-s is 0: from 5 to 8.64e+04 is allowed"),
        (["full", "--time-limit-s", "nan"], "--time-limit-s is nan: from 5 to"),
        (["full", "--memory-gb", "1e6"], "--memory-gb is 1e+06: from 1 to"),
        (["full", "--jobs", "-1"], "--jobs is -1: from 1 to 64 is allowed"),
        (["full", "--out", "a.txt"], "a.txt"),
    ],
)
def test_bad_input_is_named_before_anything_runs(tmp_path, monkeypatch, capsys, arguments, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/anna_07_pipeline.ipynb").touch()
    (tmp_path / "a.txt").touch()
    monkeypatch.setattr(grade, "grade_one", lambda *_: pytest.fail("something runs"))
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    assert grade.main(arguments, here=str(tmp_path)) == 2
    assert words in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "empty", "full"]


# An interrupt


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
):
    """Killed outright it cannot tidy up its files, but its processes end all the same."""
    (tmp_path / "class").mkdir()
    notebook = new_notebook(cells=[new_code_cell("open('../../runs', 'w')\nwhile True:\n    pass")])
    nbformat.write(notebook, tmp_path / "class/anna_01_scatter_and_gather.ipynb")
    module = "mpcourse.commands.grading.gradebook"
    command = [sys.executable, "-m", module, str(tmp_path), "class"]
    with nothing_left(tmp_path / "tmp", monkeypatch):
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        end = time.monotonic() + 120
        while not list((tmp_path / "tmp").glob("graded-*/runs")) and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(how)
        assert process.wait(60) == (130 if how == signal.SIGINT else -how)
        if how == signal.SIGKILL:
            monkeypatch.setattr("pathlib.Path.iterdir", lambda self: iter(()))
