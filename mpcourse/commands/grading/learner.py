"""In the sandbox: a learner's cells run here, and their answers are played, case by case.

Told what to do by JSON, and answering with a line each. It judges nothing: whatever is
written there, here or by a cell, is an outcome for somebody else to compare.
"""

import _thread
import contextlib
import json
import os
import threading
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from mpcourse import exercises
from mpcourse.commands.grading.outcomes import encode
from mpcourse.exercises import exercise
from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, Raised, generators_kept

ELSEWHERE = exercise.Verdict("not yet", ("Checks are asked elsewhere.",))


def run(shell: InteractiveShell, source: str, limit_s: float) -> str:
    """Run a cell; what went wrong, in words."""
    timer = threading.Timer(limit_s, _thread.interrupt_main)
    timer.start()
    try:
        result = shell.run_cell(source, store_history=True)
    finally:
        timer.cancel()
    error = result.error_before_exec or result.error_in_exec
    if isinstance(error, KeyboardInterrupt):
        return f"was stopped after {limit_s:.0f} s"
    return f"raised {type(error).__name__}: {error}" if error else ""


def play(check: Exercise, attempt: Any, case: tuple) -> list:
    """Play an attempt on a case; also what the outcome is made of ends within the time limit."""
    with generators_kept():
        return ["outcome", exercise.played(lambda *a: encode(check.play(*a)), attempt, case)]


def answered(act: Callable[..., Any], *given: Any) -> str:
    """What comes of it, as JSON."""
    try:
        return json.dumps(act(*given))
    except NotAttempted:
        found = ["not attempted"]
    except NotYet as problem:
        found = ["not yet", [str(line) for line in problem.args], problem.read_again]
    except BaseException as error:
        kind = "" if isinstance(error, Raised) else f"raised {type(error).__name__}: "
        found = ["raised", f"{kind}{error}"]
    return json.dumps(found)


def limit(most: dict[str, int]) -> None:
    """What this process and each that it starts may take; Windows knows no such limits."""
    with contextlib.suppress(ImportError):
        import resource

        for name, value in most.items():
            with contextlib.suppress(ValueError):  # a stricter one holds
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def main() -> None:
    """Do what is told: run cells, and play the answers to exercises."""
    told, answers = (os.fdopen(os.dup(number), mode) for number, mode in ((0, "r"), (1, "w")))
    with open(os.devnull, "r+") as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    most, task = json.load(told)
    limit(most)
    asked = [key for key, *_ in task if key.startswith("check_")]
    checks = {name: getattr(exercises, name) for name in asked}
    Exercise.__call__ = lambda self, *attempt: ELSEWHERE
    shell = InteractiveShell.instance()

    def say(key: str, *act: Any) -> None:
        print(f"[{json.dumps(key)}, {answered(*act)}]", file=answers, flush=True)

    for key, source, rest in task:
        if not (check := checks.get(key)):
            say(key, run, shell, source, rest)
            continue
        attempt: list[Any] = []
        call = f"({', '.join(rest)},)"  # what the cells have made of what is asked
        say(key, lambda: attempt.append(check.taken(eval(call, shell.user_ns))))  # noqa: B023
        for number, case in enumerate(check.cases if attempt else ()):
            say(f"{key} {number}", play, check, attempt[0], case)
    os._exit(0)


if __name__ == "__main__":
    main()
