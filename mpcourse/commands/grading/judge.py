"""One learner's notebook: its cells run in a sandbox, here is judged what came out.

A process of its own for `gradebook`, which hands it notebooks one after the other. Nothing that a
learner wrote is run, imported or unpickled in it: it asks the learner's process for the outcome of
one case after the other, reads it as data and compares, with the exercise's own words.
"""

import contextlib
import hashlib
import json
import os
import queue
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from mpcourse.commands.grading.outcomes import decode
from mpcourse.commands.grading.questions import (
    NoNotebook,
    Question,
    answer_of,
    given_by,
    meaning,
    merged,
    read_copy,
)
from mpcourse.commands.grading.sandbox import START_LIMIT_S, Limits, NotJudged, Sandbox
from mpcourse.commands.page_format import page_key
from mpcourse.exercises import PAGES
from mpcourse.exercises.exercise import Elsewhere, Exercise, NotAttempted, NotYet, Raised

CELL_SHARE = 0.25  # of a notebook's time, for one cell: one that hangs leaves the rest its turn
MOST_WORDS = 4000  # characters of a message, which a learner's exception may be part of
GRACE_S = 10.0  # for a cell that is interrupted


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
        kind, *rest = self._box.ask(*question)
        words = [part for part in rest if isinstance(part, str)]
        with contextlib.suppress(ValueError, IndexError):
            if kind == "outcome":
                return decode(rest[0])
            if kind == "not yet":
                raise NotYet(*map(str, rest[0]), read_again=words[0])
        if kind == "not attempted":
            raise NotAttempted
        if kind == "raised" and words:
            raise Raised(words[0])
        if kind == "missing" and words:
            raise Missing(words)
        if kind != "taken":
            raise NotJudged("its process answered with what is no answer")
        return None


class Missing(Exception):
    """No cell has set these names."""


def found_in(
    copy: Path, page: Path, course: Path, limits: Limits, *, closed: bool
) -> Iterator[dict]:
    """Run a copy's cells, judge the exercises of its page; yields each thing as it is found out.

    Raises NoNotebook or NotJudged where nothing more can be found out.
    """
    ours = read_copy(page)
    cells, notes = merged(read_copy(copy), ours)
    yield from ({"note": note} for note in notes)
    failed: list[tuple[str, str]] = []
    box = Sandbox(course, limits, closed=closed)
    try:
        if box.ask(limit_s=START_LIMIT_S) != ["ready"]:
            raise NotJudged("its process did not start")
        box.begin()
        for cell in cells:
            yield {"at": cell.question.name if cell.question else cell.where}
            if cell.question:
                exercise = PAGES[page_key(page.name)][cell.question.check]
                found = judged(exercise, Remote(box, cell.question, ours), failed)
                answer = answer_of(cells, cell.question)
                public = {"", meaning(exercise.solution_text()[1])}
                key = "" if answer in public else hashlib.sha256(answer.encode()).hexdigest()
                yield {"exercise": cell.question.name, **found, "answer": key}
                continue
            limit_s = limits.time_s * CELL_SHARE
            kind, *words = box.ask("run", cell.source, limit_s, limit_s=limit_s + GRACE_S)
            if kind != "done":
                failed.append((cell.source, f"{cell.where} {words[0] if words else kind}"))
                yield {"note": failed[-1][1]}
    finally:
        box.end()


def judged(exercise: Exercise, attempt: Remote, failed: list[tuple[str, str]]) -> dict[str, str]:
    """State and message of one exercise; `failed` has cells that raised, with what they raised."""
    try:
        verdict = exercise(attempt)
        return {"state": verdict.state, "message": "\n".join(verdict.lines)}
    except Missing as missing:
        names = missing.args[0]
        pattern = rf"\b({'|'.join(map(re.escape, names))})\b"
        because = [words for source, words in failed if re.search(pattern, source)]
        if because:
            return {"state": "not yet", "message": because[0]}
        return {"state": "not judged", "message": f"no cell sets {', '.join(names)}"}
    except NotJudged:
        raise
    except Exception as error:
        words = f"the check failed with {type(error).__name__}: {error}"
        return {"state": "not judged", "message": words}


def main() -> None:
    """Judge what is asked for, a line of JSON each, until nobody asks any more."""
    tasks: queue.Queue[dict] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            tasks.put(json.loads(line))
        os._exit(1)  # whoever asked has gone; what this has started ends with it

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a check prints is no answer
    threading.Thread(target=read, daemon=True).start()
    while True:
        task = tasks.get()
        paths = [Path(task[name]) for name in ("copy", "page", "course")]
        why = ""
        try:
            for found in found_in(*paths, Limits(*task["limits"]), closed=task["closed"]):
                found = {name: each[:MOST_WORDS] for name, each in found.items()}
                print(json.dumps(found), file=answers, flush=True)
        except (NoNotebook, NotJudged) as error:
            why = str(error)
        except Exception as error:  # the next notebook is another one
            why = f"the judge failed with {type(error).__name__}: {error}"
        print(json.dumps({"end": why[:MOST_WORDS]}), file=answers, flush=True)


if __name__ == "__main__":
    main()
