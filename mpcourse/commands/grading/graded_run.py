"""One learner's notebook, in a process of its own: its cells run, the course's checks judge.

Behind `python -m mpcourse grade`, which starts this, watches it and ends it with all that it has
started. What is found out is printed at once, a line of JSON each, so that nothing is lost with
the process.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from mpcourse.commands.grading.kernel import Kernel, Outcome
from mpcourse.commands.grading.network import bring_loopback_up
from mpcourse.commands.grading.questions import (
    Question,
    bound_names,
    code_cells,
    differences,
    exercises_of,
    meaning,
)

LONGEST_SHARE = 0.5  # of the page's time, for one cell: a cell that hangs leaves the rest its turn
ANSWER = '__import__("mpcourse.commands.grading.judge", fromlist=["answer"]).answer({})'
Tell = Callable[..., None]


class Stop(Exception):
    """The page cannot go on; says why."""


class GradedRun:
    """One run of a copy in a fresh kernel: what was judged and what went wrong goes to `tell`.

    `answers` is the file in which the kernel's judge answers, outside the kernel's own folder;
    `limit_s` are the seconds for all cells and checks together.
    """

    def __init__(
        self, exercises: list[Question], kernel: Kernel, answers: Path, limit_s: float, tell: Tell
    ):
        self._exercises = exercises
        self._kernel = kernel
        self._answers = answers
        self._limit_s = limit_s
        self._tell = tell
        self._due = {exercise.check for exercise in exercises}
        self._failed: list[tuple[str, str]] = []  # source of a cell, and what it raised
        self._where = "before the first cell"
        self._ask()  # notes what the course's modules hold; importing them takes seconds
        self._end = time.monotonic() + limit_s

    def run(self, copy: NotebookNode) -> None:
        """Run the cells in order; a check cell of the page is judged where it stands.

        Raises Stop when the time is up or the kernel is gone.
        """
        cells = list(code_cells(copy))
        by_meaning = {meaning(exercise.source): exercise for exercise in self._exercises}
        for position, cell in cells:
            self._where = f"cell {position}"
            self._tell(at=f"cell {position} of {len(copy.cells)}")
            exercise = by_meaning.get(meaning(cell.source))
            if exercise:
                self._judge(exercise)
                continue
            bound = bound_names(cell.source)
            self._due |= {e.check for e in self._exercises if bound & set(e.asked)}
            outcome = self._within_limit(cell.source)
            if outcome.kind != "ok":
                self._failed.append((cell.source, f"cell {position} {outcome.words}"))
            if outcome.kind != "ok" and "raises-exception" not in cell.metadata.get("tags", []):
                self._tell(note=f"cell {position} {outcome.words}")
            self._note_replaced(self._ask()["replaced"])
        self._where = "after the last cell"
        for exercise in self._exercises:
            if exercise.check in self._due:
                self._judge(exercise)

    def _judge(self, exercise: Question) -> None:
        answer = self._ask(exercise)
        self._due.discard(exercise.check)
        self._note_replaced(answer["replaced"])
        state, message = answer["verdict"]
        for name in answer["missing"]:
            because = [words for source, words in self._failed if re.search(rf"\b{name}\b", source)]
            state = "not yet" if because else "not judged"
            message = because[0] if because else f"no cell sets {name}"
        self._tell(exercise=exercise.name, state=state, message=message)

    def _note_replaced(self, names: list[str]) -> None:
        for name in names:
            self._tell(note=f"{self._where} replaced {name} of the course: put back before judging")

    def _ask(self, exercise: Question | None = None) -> dict:
        """What the kernel's judge says; see `judge.answer`."""
        self._answers.unlink(missing_ok=True)
        words = [str(self._answers)]
        if exercise:
            words += [exercise.source, exercise.check, [*exercise.asked, *exercise.given]]
        code = ANSWER.format(", ".join(map(repr, words)))
        outcome = self._within_limit(code) if exercise else self._run(code, 120.0)
        try:
            return json.loads(self._answers.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            verdict = "not judged", f"its check {outcome.words or 'gave no answer'}"
            return {"replaced": [], "missing": [], "verdict": verdict}

    def _within_limit(self, code: str) -> Outcome:
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise Stop(f"the page's {self._limit_s:g} s were over at {self._where}")
        return self._run(code, min(left_s, self._limit_s * LONGEST_SHARE))

    def _run(self, code: str, limit_s: float) -> Outcome:
        outcome = self._kernel.run(code, limit_s)
        if outcome.kind == "gone":
            raise Stop(f"{self._where} {outcome.words}")
        return outcome


def read_copy(path: Path) -> NotebookNode:
    """Read a learner's notebook, in whichever format."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise Stop(f"the file cannot be read: {error}") from None
    try:
        json.loads(text)
    except ValueError as error:
        raise Stop(f"half saved? The file is no whole notebook: {error}") from None
    try:
        copy = nbformat.reads(text, as_version=4)
        nbformat.validate(copy)
    except Exception as error:  # nbformat raises what its reading stumbles over
        words = str(error).split("\n")[0]
        raise Stop(f"the file is no notebook: {type(error).__name__}: {words}") from None
    return copy


def tell(**found: str) -> None:
    """Print what was found out, a line of JSON."""
    print(json.dumps(found), flush=True)


def _end_with_parent() -> None:
    """The other end of stdin closes when whoever watches this has ended."""
    sys.stdin.read()
    os._exit(1)  # the kernel ends when it sees that its parent has gone


def main(copy: str, page: str, folder: str, limit_s: str) -> None:
    """Grade a copy against its page, with the clone of the course that lies in `folder`."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    bring_loopback_up()
    kernel = None
    try:
        ours = nbformat.read(page, as_version=4)
        theirs = read_copy(Path(copy))
        for note in differences(theirs, ours):
            tell(note=note)
        kernel = Kernel(Path(folder) / "clone")
        answers = Path(folder) / "answer.json"
        GradedRun(exercises_of(ours), kernel, answers, float(limit_s), tell).run(theirs)
        tell(end="")
    except Stop as stop:
        tell(end=str(stop))
    finally:
        if kernel:
            kernel.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
