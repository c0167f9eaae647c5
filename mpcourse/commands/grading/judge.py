"""One learner's notebook: its cells run in a sandbox, here is judged what came out.

Nothing that a learner wrote is run, imported or unpickled here: the outcome of one case after the
other is read as data and compared, with the exercise's own words.
"""

import os
import unicodedata
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from mpcourse.commands.clean_copies import checks_of, page_key
from mpcourse.commands.grading.outcomes import decode
from mpcourse.commands.grading.questions import Step, exercises_of, given_by, steps
from mpcourse.commands.grading.sandbox import Limits, can_close, run
from mpcourse.exercises import PAGES, Exercise, NotAttempted, NotYet
from mpcourse.exercises.exercise import TIME_LIMIT_S, TOO_LATE, Elsewhere, Raised

CELL_SHARE = 0.25  # of a notebook's time, for one cell: one that hangs leaves the rest its turn
MOST_WORDS = 4000  # characters of a message, which a learner's exception may be part of


@dataclass
class Record:
    """What became of one notebook."""

    learner: str
    file: str  # its place in the folder
    page: str = ""  # as in "07_pipeline"; empty when it is of no page of the course
    judged: dict[str, tuple[str, str]] = field(default_factory=dict)  # check -> state, words
    answers: dict[str, str] = field(default_factory=dict)  # check -> what was written
    notes: list[str] = field(default_factory=list)  # what an instructor should know besides
    key: str = ""  # of copy and course; empty where something else might come out next time


@dataclass
class Remote(Elsewhere):
    """A learner's attempt at one exercise, of which the sandbox has answered by keys."""

    check: str
    answers: dict[str, Any]
    page: NotebookNode

    def taken(self) -> None:
        """Whether it was there to be played."""
        self._heard(self.check)

    def outcome_of(self, number: int) -> Any:
        """What came out."""
        return self._heard(f"{self.check} {number}")

    def given(self, name: str) -> Any:
        """What the page gives besides, made here by the page's own cells."""
        names: dict[str, Any] = {"display": lambda *_: None}
        exec(compile(given_by(self.page, name), "<the page>", "exec"), names)
        return names[name]

    def _heard(self, key: str) -> Any:
        match self.answers[key]:
            case None:  # there is something to be played
                return None
            case ["outcome", found]:
                return decode(found)
            case ["not attempted"]:
                raise NotAttempted
            case ["not yet", [*lines], str(where)]:
                raise NotYet(*map(str, lines), read_again=where)
            case ["raised", str(words)]:
                raise Raised(words)
        raise ValueError("its process answered with what is no answer")


def clean(text: str) -> str:
    """Text that any file and terminal takes: what cannot be printed becomes a black diamond."""
    # line ends stay; names may hold bytes that are no UTF-8, messages codes that move a cursor;
    # a Mac writes an accent as a character of its own
    text = unicodedata.normalize("NFC", text)
    shown = (c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "".join(shown)[:MOST_WORDS]


def play(copy: Path, page: Path, course: Path, limits: Limits) -> tuple[list[Step], dict, str]:
    """Run a copy's cells in a sandbox: the steps, what was answered, and why no more was."""
    try:
        theirs = nbformat.reads(copy.read_text(encoding="utf-8-sig"), as_version=4)
        cells = steps(theirs, nbformat.read(page, as_version=4))
    except Exception as error:  # whatever such a file may be
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        return [], {}, f"the notebook cannot be read: half saved? {words}"
    limit_s = limits.time_s * CELL_SHARE
    task = [(cell.name, cell.source, cell.asked or limit_s) for cell in cells]
    return cells, *run(course, task, limits, closed=can_close())


def judge(record: Record, page: Path, cells: list[Step], answers: dict, why: str) -> None:
    """Judge the exercises of a page by what `play` returns, and say so in the record."""
    ours = nbformat.read(page, as_version=4)
    folds = {check.source: below for check, _, below in checks_of(ours.cells)}
    notes = [f"{c.name} {answers[c.name]}" for c in cells if not c.asked and answers.get(c.name)]
    for asked in exercises_of(ours):
        exercise = PAGES[page_key(page.name)][asked.name]
        state, words = judged(exercise, Remote(asked.name, answers, ours), why)
        record.judged[asked.name] = state, clean(words)
        if state == "not judged":
            notes.append(words)
        if TOO_LATE.format(TIME_LIMIT_S) in words:  # it hangs, or the machine was busy
            notes.append(f"{asked.name} was stopped after {TIME_LIMIT_S:g} s")
        shown = [c.source for c in folds.get(asked.source, ()) if "jupyter" in c.metadata][:1]
        if any(cell.source in shown for cell in takewhile(asked.__ne__, cells)):
            notes.append(f"{asked.name}: the page's solution ran before it was judged")
        theirs = (cell for cell in cells if cell.is_theirs and cell.touched & {*asked.asked})
        record.answers[asked.name] = "\n".join(cell.source for cell in theirs)
    record.notes += dict.fromkeys(map(clean, notes))
    states = {state for state, _ in record.judged.values()}
    if "not judged" in states or any("was stopped after" in note for note in notes):
        record.key = ""


def judged(exercise: Exercise, attempt: Remote, why: str) -> tuple[str, str]:
    """State and message of one exercise; `why` says what there is to say where no answer came."""
    try:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            verdict = exercise(attempt)
        return verdict.state, "\n".join(verdict.lines)
    except Raised as problem:  # before anything was played
        return "not yet", str(problem)
    except KeyError:
        return "not judged", why
    except Exception as error:
        return "not judged", f"the check failed with {type(error).__name__}: {error}"
