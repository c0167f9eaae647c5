"""One learner's notebook: its cells run in a sandbox, here is judged what came out.

Nothing that a learner wrote is run, imported or unpickled here: the learner's process is asked for
the outcome of one case after the other, which is read as data and compared, with the exercise's own
words.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from mpcourse.commands.clean_copies import page_key
from mpcourse.commands.grading.outcomes import decode
from mpcourse.commands.grading.questions import Question, exercises_of, given_by, read_copy, steps
from mpcourse.commands.grading.sandbox import START_LIMIT_S, Limits, NotJudged, Sandbox, can_close
from mpcourse.exercises import PAGES
from mpcourse.exercises.exercise import Elsewhere, Exercise, NotAttempted, NotYet, Raised

CELL_SHARE = 0.25  # of a notebook's time, for one cell: one that hangs leaves the rest its turn
MOST_WORDS = 4000  # characters of a message, which a learner's exception may be part of
GRACE_S = 10.0  # for a cell that is interrupted


@dataclass
class Record:
    """What became of one notebook."""

    learner: str
    file: str  # its place in the folder
    page: str  # the page's file; empty when it is of no page of the course
    judged: dict[str, tuple[str, str]] = field(default_factory=dict)  # check -> state, words
    notes: list[str] = field(default_factory=list)  # what an instructor should know besides
    stopped: str = ""  # why not all was judged, or more might be next time
    key: str = ""  # digest of copy and course: with the same one, nothing would come out otherwise


class Missing(Exception):
    """No cell has set these names."""


class Remote(Elsewhere):
    """A learner's attempt at one exercise, in the sandbox."""

    def __init__(self, box: Sandbox, question: Question, page: NotebookNode):
        self._box, self._question, self._page = box, question, page

    def taken(self) -> None:
        """Let it be looked up over there."""
        question = self._question
        self._heard("take", question.check, question.source, question.asked)

    def outcome_of(self, number: int) -> Any:
        """Let it be played over there."""
        return self._heard("play", self._question.check, number)

    def given(self, name: str) -> Any:
        """What the page gives besides, made here by the page's own cells."""
        names: dict[str, Any] = {"display": lambda *_: None}
        exec(compile(given_by(self._page, name), "<the page>", "exec"), names)
        return names[name]

    def _heard(self, *question: Any) -> Any:
        match self._box.ask(*question):
            case ["taken"]:
                return None
            case ["outcome", found]:
                return decode(found)
            case ["not attempted"]:
                raise NotAttempted
            case ["not yet", [*lines], str(where)]:
                raise NotYet(*map(str, lines), read_again=where)
            case ["raised", str(words)]:
                raise Raised(words)
            case ["missing", *names]:
                raise Missing(", ".join(map(str, names)))
        raise NotJudged("its process answered with what is no answer")


def clean(text: str) -> str:
    """Text that any file and terminal takes: what cannot be printed becomes a black diamond.

    Line ends stay. Names of files may hold bytes that are no UTF-8, messages may hold codes that
    move a terminal's cursor.
    """
    shown = (c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "".join(shown)[:MOST_WORDS]


def judge(record: Record, copy: Path, page: Path, course: Path, limits: Limits) -> Record:
    """Run a copy's cells, judge the exercises of its page, and say so in the record."""
    ours = read_copy(page)
    try:
        _judge_all(record, steps(read_copy(copy), ours), ours, course, limits)
    except NotJudged as error:
        record.stopped = clean(str(error))
    for question in exercises_of(ours):
        record.judged.setdefault(question.check, ("not judged", record.stopped))
    return record


def _judge_all(record, cells, page, course, limits) -> None:
    exercises = PAGES[page_key(record.page)]
    box = Sandbox(course, limits, closed=can_close())
    try:
        if box.ask(limit_s=START_LIMIT_S) != ["ready"]:
            raise NotJudged("its process did not start")
        box.begin()
        for cell in cells:
            if cell.question:
                check = cell.question.check
                state, words = judged(exercises[check], Remote(box, cell.question, page))
                record.judged[check] = state, clean(words)
                continue
            limit_s = limits.time_s * CELL_SHARE
            kind, *words = box.ask("run", cell.source, limit_s, limit_s=limit_s + GRACE_S)
            if kind != "done":
                record.notes.append(clean(" ".join([cell.where, kind, *map(str, words)])))
            if kind == "was stopped":
                record.stopped = record.notes[-1]
    finally:
        box.end()


def judged(exercise: Exercise, attempt: Remote) -> tuple[str, str]:
    """State and message of one exercise."""
    try:
        verdict = exercise(attempt)
        return verdict.state, "\n".join(verdict.lines)
    except Missing as missing:
        return "not yet", f"No cell that ran to its end sets {missing}."
    except NotJudged:
        raise
    except Exception as error:
        return "not judged", f"the check failed with {type(error).__name__}: {error}"
