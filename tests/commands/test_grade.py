"""A class hands in: whose is what, what is asked and taken, what people read; then all of it."""

import ast
import builtins
import csv
import inspect
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
import torch
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from processes import nothing_left

from mpcourse.commands.clean_copies import clean_copy, find_pages, without_solutions
from mpcourse.commands.grading import gradebook as grade
from mpcourse.commands.grading import report
from mpcourse.commands.grading.gradebook import find_submissions
from mpcourse.commands.grading.judge import Record, clean, judge
from mpcourse.commands.grading.no_solutions import imported, write_course
from mpcourse.commands.grading.outcomes import decode, encode
from mpcourse.commands.grading.questions import Step, code_cells, given_by, steps
from mpcourse.commands.grading.sandbox import can_close
from mpcourse.commands.pages import NOTEBOOKS
from mpcourse.commands.setup import ROOT
from mpcourse.exercises import PAGES, capstone, scatter_and_gather
from mpcourse.exercises import exercise as engine

NAME = "01_scatter_and_gather.ipynb"
WRONG = "def my_scatter(rows, count):\n    return list(rows.tensor_split(count))"
PI, SOLUTION = "my_plan = pi", "my_plan = 7  # a solution"
CHECK, EXERCISE = {"tags": ["check"]}, {"tags": ["exercise"]}


def clean_page(name: str = NAME) -> NotebookNode:
    return nbformat.reads(clean_copy((NOTEBOOKS / name).read_text("utf-8")), as_version=4)


def solved(**instead: str) -> NotebookNode:
    """A copy with right answers, some of them others."""
    notebook = clean_page()
    for cell in notebook.cells:
        if "exercise" in cell.metadata.get("tags", []):
            name = cell.source.split("(")[0].removeprefix("def ")
            source = inspect.getsource(getattr(scatter_and_gather, name))
            cell.source = instead.get(name, source)
    return notebook


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
        ("anna/pipelines.ipynb", "anna", ""),
        ("anna/.ipynb_checkpoints/07_pipeline.ipynb", None, None),
        ("a..\\..\\x.ipynb", "a..\\..\\x", ""),
    ],
)
def test_a_notebook_has_a_learner_and_a_page(tmp_path, file, learner, page):
    path = tmp_path / "class" / file
    path.parent.mkdir(parents=True)
    path.touch()
    (tmp_path / "class/notes.ipynb").touch()
    found = [r for p, r in find_submissions(tmp_path / "class") if p == path]
    assert [(r.learner, r.page, r.file) for r in found] == (
        [(learner, page, file)] if learner else []
    )
    if page == "":
        assert "of no page of the course: LEARNER/NN_page.ipynb" in found[0].notes[0]


def test_a_renamed_notebook_is_known_by_its_checks_and_a_link_is_not_read(tmp_path):
    nbformat.write(solved(), tmp_path / "homework final.ipynb")
    (tmp_path / "eve.ipynb").symlink_to(tmp_path / "homework final.ipynb")
    found = {record.learner: record for _, record in find_submissions(tmp_path)}
    assert found["homework final"].page == Path(NAME).stem
    assert not found["eve"].page
    assert "a link" in found["eve"].notes[0]


@pytest.mark.skipif(os.name == "nt", reason="it has no such things")
@pytest.mark.parametrize("lay", [os.mkdir, os.mkfifo, lambda path: os.symlink("/gone", path)])
def test_what_is_no_file_keeps_nobody_from_grading(tmp_path: Path, lay):
    """A read of it would fail, or never end."""
    lay(tmp_path / f"eve_{NAME}")
    [(_, found)] = find_submissions(tmp_path)
    assert "no file to be read" in found.notes[0]


def test_a_scratch_notebook_that_tries_one_check_is_no_page(tmp_path):
    scratch = new_notebook(cells=[new_code_cell("check_mean(lambda m, n: 1)")])
    nbformat.write(scratch, tmp_path / "tries.ipynb")
    [(_, found)] = find_submissions(tmp_path)
    assert (found.page, found.judged) == ("", {})
    assert "of no page of the course" in found.notes[0]
    scratch.cells.append(new_code_cell("check_scatter(1)"))  # half of them
    nbformat.write(scratch, tmp_path / "tries.ipynb")
    [(_, found)] = find_submissions(tmp_path)
    assert found.page == Path(NAME).stem


# What is asked, and what of a copy is taken


def test_what_a_page_gives_besides_a_judge_makes_of_its_cells():
    [capstone] = find_pages(["capstone"])
    made = Step(given_by(nbformat.read(capstone, as_version=4), "task"))
    assert "task" in made.touched
    assert made.used - made.touched <= {*dir(builtins), "display"}


def page() -> NotebookNode:
    return new_notebook(
        cells=[
            new_markdown_cell("# 01 Title"),
            new_code_cell("import math\ntask = 1", id="given"),
            new_code_cell("measured = [measure(task)]", id="measured"),
            new_markdown_cell("What now?"),
            new_code_cell("my_plan = ...", metadata=EXERCISE, id="plan"),
            new_code_cell("check_plan(my_plan, task)", metadata=CHECK, id="check"),
        ]
    )


@pytest.mark.parametrize(
    ("changes", "run"),
    [
        ({4: "my_plan = math.pi"}, ["import math\ntask = 1", "my_plan = math.pi", "?"]),
        ({4: "my_plan = 2", 2: "my_plan = 3"}, ["my_plan = 3", "my_plan = 2", "?"]),
        ({4: "my_plan = 2", 5: "print('correct')"}, ["my_plan = 2", "?"]),
        ({4: "my_plan = ("}, ["my_plan = (", "?"]),
        (
            {4: "my_plan = f()", "+4": "def f(): return 4"},
            ["def f(): return 4", "my_plan = f()", "?"],
        ),
        ({"+4": "while True: pass"}, ["my_plan = ...", "?"]),
        ({4: "my_plan = pi", "+4": "from math import *"}, ["from math import *", PI, "?"]),
        ({4: "my_plan = []", "+5": "fill(my_plan)"}, ["my_plan = []", "fill(my_plan)", "?"]),
        ({"+5": "print(my_plan)"}, ["my_plan = ...", "?"]),
        (
            {4: "my_plan = []", "+5": "my_plan.append(1)"},
            ["my_plan = []", "my_plan.append(1)", "?"],
        ),
        ({4: "my_plan = {}", "+5": "my_plan[0] = 1"}, ["my_plan = {}", "my_plan[0] = 1", "?"]),
        ({1: "import math as m", 4: "my_plan = m.pi"}, ["import math as m", "my_plan = m.pi", "?"]),
        ({"+6": "my_plan = 5"}, ["my_plan = ...", "my_plan = 5", "?"]),
        ({4: "%time my_plan = 2"}, ["%time my_plan = 2", "?"]),
        ({"+6": "check_plan(f(7))"}, ["my_plan = ...", "?"]),
        ({"+6": SOLUTION}, ["my_plan = ...", "?", SOLUTION]),
        ({"+6": SOLUTION, "+7": "my_plan = 5"}, ["my_plan = ...", SOLUTION, "my_plan = 5", "?"]),
    ],
)
def test_of_a_copy_those_cells_run_that_an_answer_needs(changes, run):
    """What answers it comes before an exercise is judged, what the page shows of it after."""
    copy, ours = page(), page()
    ours.cells.append(new_code_cell(SOLUTION))
    for place, source in changes.items():
        if isinstance(place, int):
            copy.cells[place].source = source
        else:
            copy.cells.insert(int(place), new_code_cell(source))
    cells = ["?" if cell.asked else cell.source for cell in steps(copy, ours)]
    assert cells == run


def test_where_a_solution_was_left_out_the_page_s_own_cell_runs():
    [path] = find_pages(["split_a_model"])
    text = path.read_text("utf-8")
    copy = nbformat.reads(without_solutions(clean_copy(text), "split_a_model"), as_version=4)
    stubs = [cell for cell in copy.cells if "exercise" in cell.metadata.get("tags", [])]
    stubs[-1].source = f"{stubs[-1].source}\ntraining_step"  # an answer that goes on with it
    for cell in copy.cells:
        del cell["id"]  # as some platforms do
    [shown] = [c for c in steps(copy, nbformat.reads(text, 4)) if "def training_step(" in c.source]
    assert not shown.is_theirs


@pytest.mark.parametrize("solutions", [True, False])
@pytest.mark.parametrize("answer", ["my_scatter_nest = scatter_nest", "my_scatter_nest = list"])
def test_an_answer_made_of_the_page_s_solution_is_told(answer: str, solutions: bool):
    path = NOTEBOOKS / NAME
    text = clean_copy(path.read_text("utf-8"))
    text = text if solutions else without_solutions(text, "scatter_and_gather")
    copy = nbformat.reads(text, as_version=4)
    copy.cells.append(new_code_cell(answer))
    found = Record("eve", NAME, NAME)
    judge(found, path, steps(copy, nbformat.read(path, 4)), {}, "no answer")
    told = "check_scatter_nest: the page's solution ran before it was judged"
    assert [note for note in found.notes if note != "no answer"] == [told] * (
        "= scatter_nest" in answer
    )


def test_a_late_answer_is_judged_again_next_time():
    path = NOTEBOOKS / NAME
    page = nbformat.read(path, 4)
    late = ["raised", "it had not returned after 10 seconds and was stopped."]
    for answer, notes in [(late, ["check_scatter was stopped after 10 s"]), (["raised", "no"], [])]:
        found = Record("eve", NAME, NAME, key="1")
        answers = {check: ["not attempted"] for check in PAGES["scatter_and_gather"]}
        answers |= {"check_scatter": None, "check_scatter 0": answer}
        judge(found, path, steps(page, page), answers, "")
        assert (found.judged["check_scatter"][0], found.notes) == ("not yet", notes)
        assert bool(found.key) == (not notes)


# The course without solutions


def test_all_names_that_a_line_imports_are_asked_for():
    line = "from mpcourse.exercises.capstone import meets_targets, plan_target"
    both = {"capstone": {"meets_targets", "plan_target"}}
    assert imported(line) == imported(f'    "{line}\\n",') == both


def test_no_solution_is_left_and_every_page_s_exercises_can_be_played(tmp_path: Path):
    for each in find_pages([]):
        folder = tmp_path / each.stem
        write_course(folder, each)
        code = "\n".join(c.source for c in code_cells(nbformat.read(each, as_version=4)))
        left = {path.stem: path.read_text() for path in (folder / "mpcourse/exercises").glob("*")}
        for name, source in left.items():
            own = PAGES.get(name, {}).values()
            names = {x.name for x in ast.walk(ast.parse(source)) if hasattr(x, "name")}
            assert not names & {exercise.solution.__name__ for exercise in own}
        for module, asked in re.findall(r"from mpcourse\.exercises\.(\w+) import (.+)", code):
            for name in asked.split(", "):
                given = rf"\b(def|class) {name}\b|^{name} = "
                assert re.search(given, left[module], re.MULTILINE)
        assert not {"commands/check.py", "__main__.py"} & set(os.listdir(folder / "mpcourse"))
        for name in left:  # one package with all of them, to import at once
            if name not in ("__init__", "exercise"):
                path = tmp_path / find_pages([])[0].stem / f"mpcourse/exercises/{name}.py"
                old = path.read_text() if path.exists() else ""
                path.write_text(max(old, left[name], key=len))
    words = "import mpcourse.exercises as e; print({p: sorted(x) for p, x in e.PAGES.items()})"
    command = [sys.executable, "-c", words]
    env = {"PYTHONPATH": str(tmp_path / find_pages([])[0].stem), "HOME": str(tmp_path)}
    found = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout, found.stderr
    assert ast.literal_eval(found.stdout) == {p: sorted(own) for p, own in PAGES.items()}


GUESSES = [None, True, False, 0, 1, "", [], (), {}, float("nan"), float("inf"), iter(())]


@pytest.mark.parametrize("page", PAGES)
def test_nothing_that_anybody_would_guess_is_an_outcome(page: str):
    """Who forges what comes out has to know it."""
    for exercise in PAGES[page].values():
        if not exercise.look:
            wanted = [exercise._expected(case) for case in exercise.cases]
        for guess in GUESSES:
            if exercise.look:
                with pytest.raises(engine.NotYet):
                    tuple(exercise._looked_at(guess, case) for case in exercise.cases)
            else:
                assert not all(exercise._same(guess, each) for each in wanted), guess


def no_numbers(found):
    """What came out, every float in it nan: neither too small nor too large."""
    if isinstance(found, list):
        return [no_numbers(each) for each in found]
    return math.nan if isinstance(found, float) else found


@pytest.mark.parametrize("name", PAGES)
def test_read_as_data_a_solution_s_outcomes_are_as_right_and_without_numbers_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    class Near(engine.Elsewhere):
        def __init__(self, exercise):
            self.exercise = exercise
            solution = exercise.solution() if exercise.values else exercise.solution
            self.answer = solution if isinstance(solution, tuple) else (solution,)
            self.found = {}

        def taken(self):
            self.attempt = self.exercise.taken(self.answer)

        def outcome_of(self, number):
            case = self.exercise.cases[number]
            outcome = engine.played(self.exercise.play, self.attempt, case)
            self.found[number] = json.loads(json.dumps(encode(outcome)))
            return decode(self.found[number])

        def given(self, name):
            return capstone.small_task()

    for exercise in PAGES[name].values():
        near = Near(exercise)
        assert exercise(near).state == "correct"
        found = {number: no_numbers(each) for number, each in near.found.items()}
        near.outcome_of = lambda number, found=found: decode(found[number])
        with monkeypatch.context() as patch:
            patch.setattr(engine.Exercise, "_meant", lambda *_: None)  # only the state counts
            assert (exercise(near).state == "correct") == (found == near.found), exercise.read_again


NO_JSON = [torch.ones(2) * 1j, np.ones(2) * 1j, 1j, torch.ones(2, 2).to_sparse_csr()]


@pytest.mark.parametrize("value", NO_JSON)
def test_numbers_that_json_lacks_arrive_as_something_else(value):
    assert json.loads(json.dumps(encode(value))) == ["other", repr(value)[:200]]


@pytest.mark.parametrize(
    "found",
    [
        ["tensor", "int64", [10**9], [1], False],
        ["tensor", "int64", [1], ["1"], False],
        ["tensor", "load", [1], [1], False],
        ["mpcourse.exercises.exercise:subprocess"],
        ["os:stat_result"],
        *([], {"a": 1}, ["dict", 3], ["set", ["list"]]),
    ],
)
def test_what_is_no_outcome_is_refused(found):
    with pytest.raises(ValueError, match="where an outcome was read"):
        decode(found)


# What people read


def record(**changes) -> Record:
    facts = {"learner": "<b>Anna</b>", "file": "a/01_page.ipynb", "page": "01_page"}
    judged = {"sum": ("not yet", "=HYPERLINK(1)\n<script>"), "mean": ("correct", "All & more")}
    return Record(**{**facts, "judged": judged, "notes": ['+1, "quoted"'], **changes})


def test_a_spreadsheet_computes_nothing_and_reads_utf_8():
    text = report.csv_of([record(learner="@Zoë")])
    assert text[0] == "\ufeff"
    rows = list(csv.reader(io.StringIO(text[1:], newline="")))
    first = ["'@Zoë", "01_page", "sum", "not yet", "'=HYPERLINK(1)\n<script>", "a/01_page.ipynb"]
    assert rows[1] == first
    assert rows[3][3:5] == ["note", '\'+1, "quoted"']


def test_what_people_read_has_totals_and_nobody_else_s_results(tmp_path: Path):
    answers = {"sum": "one = 1", "mean": "two = 2"}
    records = [
        record(answers=answers),
        record(learner="Bob", file="b.ipynb", answers={**answers, "mean": "two = 1 + 1"}),
    ]
    report.write_all(tmp_path, records, "today")
    text = (tmp_path / "results.txt").read_text()
    assert "  Bob: 1 of 2; 01_page 1 of 2*" in text
    assert "  01_page, sum: 2 not yet\n  01_page, mean: 2 correct\n" in text
    assert text.endswith("that are the same, letter by letter\n  01_page, sum: <b>Anna</b>, Bob\n")
    for learner, other in (("<b>Anna</b>", "Bob"), ("Bob", "Anna")):
        own = (tmp_path / "learners" / report.file_of(learner)).read_text()
        assert other not in own
        assert "✗ not yet: sum\n      =HYPERLINK(1)\n" in own


def test_no_line_can_be_made_up_in_what_people_read(tmp_path: Path):
    (tmp_path / "eve\n  ann: 4 of 4; 07_pipeline.ipynb").touch()
    [(_, found)] = find_submissions(tmp_path)
    assert "\n" not in found.learner + found.file
    made_up = "raised E: x\n  ✓ correct: sum"
    found.judged, found.notes = {"sum": ("not yet", made_up)}, [made_up]
    lines = report.lines_of(found).splitlines()
    assert [line for line in lines if line.startswith("  ✓")] == []
    assert lines.count("        ✓ correct: sum") == 2


def test_a_page_handed_in_twice_counts_once(tmp_path: Path):
    twice = [record(file="a/02.ipynb"), record(), record(learner="Bob")]
    twice[0].judged = {"sum": ("correct", ""), "mean": ("not yet", "")}
    report.write_all(tmp_path, twice, "today")
    text = (tmp_path / "results.txt").read_text()
    assert "<b>Anna</b>: 2 of 2; 01_page 1 of 2*, 01_page 1 of 2*" in text
    assert "Bob: 1 of 2" in text
    assert "01_page, sum: 2 not yet, 1 correct" in text


def test_codes_that_move_a_cursor_are_taken_out_and_letters_of_a_mac_are_the_same():
    assert clean("a\x1b[2Jb\nc\r\udc80") == "a\ufffd[2Jb\nc\ufffd\ufffd"
    assert clean("Zoe\u0308") == "Zo\xeb"


def test_names_that_some_systems_take_for_one_have_files_of_their_own():
    files = [report.file_of(name).casefold() for name in ("Anna", "anna", "ANNA", "con")]
    assert len(set(files)) == 4
    assert report.file_of("李 雷").startswith("李_雷-")
    assert "con.txt" not in files


# Bad input, before anything runs


def understood(folder: object, out: object = None) -> dict:
    """What was typed, as the command gets it."""
    folders = {"folder": str(folder), "out": out and str(out)}
    return {**folders, "time_limit_s": 300, "memory_gb": 4, "jobs": 2}


@pytest.fixture
def typed(monkeypatch):
    """The command, which leaves the settings of this process alone."""
    monkeypatch.setattr(grade.os, "umask", lambda mode: 0)
    monkeypatch.setattr(grade.os, "environ", {})
    monkeypatch.setattr(grade.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    return grade.main


@pytest.mark.parametrize(
    ("words_typed", "words"),
    [
        (["gone"], "gone holds no notebooks"),
        (["a.txt"], "a.txt holds no notebooks"),
        (["empty"], "empty holds no notebooks: LEARNER/NN_page.ipynb or LEARNER_NN_page.ipynb"),
        (["full", "a.txt"], "a.txt"),
        (["full"], "You are root, and this system gives no namespaces"),
    ],
)
def test_bad_input_is_named_before_anything_runs(
    tmp_path, monkeypatch, capsys, typed, words_typed, words
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/anna_07_pipeline.ipynb").touch()
    (tmp_path / "a.txt").touch()
    monkeypatch.setattr(grade, "can_close", lambda: "root" not in words)
    monkeypatch.setattr(grade.os, "geteuid", lambda: 0)
    asked = [str(tmp_path / word) for word in words_typed]
    assert typed(understood(*asked)) == 2
    assert words in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "empty", "full"]


def test_trouble_on_the_way_ends_in_words(monkeypatch, capsys, typed):
    def fail(*_):
        raise OSError("full")

    monkeypatch.setattr(grade, "grade", fail)
    assert typed(understood("class")) == 2
    assert capsys.readouterr().err == "full\n"


# All of it

MODULE = "mpcourse.commands.grading.gradebook"


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A class, graded as it is typed; no process and no file is left behind."""
    folder = tmp_path_factory.mktemp("class")
    handed_in = {
        f"Zoë 李 =1+1/my_notebooks/{NAME}": solved(),
        f"empty/{NAME}": clean_page(),
        "wrong/homework.ipynb": solved(my_scatter=WRONG, my_mean="my_mean = 1 / 0"),
    }
    for name, notebook in handed_in.items():
        (folder / name).parent.mkdir(parents=True)
        nbformat.write(notebook, folder / name)
    text = nbformat.writes(solved())
    (folder / f"half_{NAME}").write_text(text[: len(text) // 2], encoding="utf-8")
    out = tmp_path_factory.mktemp("results") / "deep"
    command = [sys.executable, "-m", MODULE, json.dumps(understood(folder, out))]
    with pytest.MonkeyPatch.context() as patch:
        with nothing_left(tmp_path_factory.mktemp("left") / "tmp", patch):
            said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    records = {each["learner"]: each for each in found}
    return SimpleNamespace(out=out, said=said.stdout, records=records, command=command)


def test_a_class_is_graded_truly(graded: SimpleNamespace):
    states = {
        learner: [state for state, _ in each["judged"].values()]
        for learner, each in graded.records.items()
    }
    assert states == {
        "Zoë 李 =1+1": ["correct"] * 4,
        "empty": ["not attempted"] * 4,
        "wrong": ["not yet", "correct", "not yet", "correct"],
    }
    judged = graded.records["wrong"]["judged"]
    namespace: dict = {}
    exec(WRONG, namespace)
    here = scatter_and_gather.check_scatter(namespace["my_scatter"])
    assert judged["check_scatter"][1] == "\n".join(here.lines)  # word for word as in the notebook
    assert judged["check_mean"][1] == "raised NameError: name 'my_mean' is not defined"
    renamed, note = graded.records["wrong"]["notes"]
    assert renamed.startswith("renamed")
    assert "raised ZeroDivisionError: division by zero" in note
    rows = [*csv.reader((graded.out / "results.csv").open(encoding="utf-8-sig", newline=""))]
    half = [row[3:5] for row in rows if row[0] == "half"]
    assert [state for state, _ in half] == ["not judged"] * 4 + ["note"]
    for _, words in half:
        assert words.startswith("the notebook cannot be read: half saved?")
    assert "4 of 4 to grade; about 0.5 min left" in graded.said
    same = (graded.out / "results.txt").read_text(encoding="utf-8").partition("letter by letter")[2]
    assert same.count("Zoë 李 =1+1, wrong") == 2, same
    assert ("neither network nor files" in (graded.out / "results.txt").read_text()) == can_close()


def test_results_are_private_and_what_was_graded_is_not_run_again(graded: SimpleNamespace):
    paths = [path for path in graded.out.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    again = subprocess.run(graded.command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "1 of 1 to grade" in again.stdout  # the half file


@pytest.mark.skipif(os.name == "nt", reason="sends signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how):
    """Killed outright it cannot tidy up its files, but its processes end all the same."""
    (tmp_path / "class").mkdir()
    notebook = solved(my_scatter="my_scatter = 1\nwhile True:\n    pass")
    nbformat.write(notebook, tmp_path / f"class/anna_{NAME}")
    command = [sys.executable, "-m", MODULE, json.dumps(understood(tmp_path / "class"))]
    with nothing_left(tmp_path / "tmp", monkeypatch):
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        end = time.monotonic() + 120
        while not list((tmp_path / "tmp").glob("graded-*")) and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(how)
        assert process.wait(60) == (130 if how == signal.SIGINT else -how)
        if how == signal.SIGKILL:
            monkeypatch.setattr("pathlib.Path.iterdir", lambda self: iter(()))
