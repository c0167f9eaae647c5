"""In the sandbox: a learner's cells run here, and their answers are played, case by case.

Asked on one pipe and answering on another, a line of JSON each. It judges nothing: whatever is
written into that pipe, here or by a cell, is an outcome for somebody else to compare.
"""

import _thread
import ast
import json
import os
import threading
from types import SimpleNamespace
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from mpcourse.commands.grading.outcomes import encode
from mpcourse.exercises import PAGES, exercise
from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, Raised, generators_kept

CHECKS = {name: check for checks in PAGES.values() for name, check in checks.items()}
ELSEWHERE = exercise.Verdict("not yet", ("Checks are asked elsewhere.",))

attempts: dict[str, Any] = {}  # check -> the attempt, as its exercise plays it


def run(shell: InteractiveShell, source: str, limit_s: float) -> list:
    """Run a cell; what became of it, in words."""
    timer = threading.Timer(limit_s, _thread.interrupt_main)
    timer.start()
    try:
        result = shell.run_cell(source, store_history=True)
    finally:
        timer.cancel()
    error = result.error_before_exec or result.error_in_exec
    if isinstance(error, KeyboardInterrupt):
        return ["was stopped", f"after {limit_s:.0f} s"]
    if isinstance(error, SyntaxError):
        error = SyntaxError(f"{error.msg} (line {error.lineno})")
    return ["raised", f"{type(error).__name__}: {error}"] if error else ["done"]


def take(shell: InteractiveShell, check: str, call: str, asked: list[str]) -> list:
    """Look up what the page's call hands to a check; only what was asked for."""
    missing = [name for name in asked if name not in shell.user_ns]
    if missing:
        return ["missing", *missing]
    names = {**shell.user_ns, check: lambda *given: given}
    names["exercises"] = SimpleNamespace(**{check: names[check]})
    call = ast.parse(call).body[-1].value
    call.args = [a for a in call.args if not isinstance(a, ast.Name) or a.id in asked]
    given = eval(compile(ast.Expression(call), "<the check>", "eval"), names)
    attempts[check] = CHECKS[check].taken(given)
    return ["taken"]


def play(_: InteractiveShell, check: str, number: int) -> list:
    """Play an attempt on a case; also what the outcome is made of ends within the time limit."""
    one = CHECKS[check]
    with generators_kept():
        found = exercise.played(lambda *a: encode(one.play(*a)), attempts[check], one.cases[number])
    return ["outcome", found]


def answer(shell: InteractiveShell, what: str, *rest: Any) -> str:
    """What comes of a question, as JSON."""
    try:
        return json.dumps({"run": run, "take": take, "play": play}[what](shell, *rest))
    except NotAttempted:
        found = ["not attempted"]
    except NotYet as problem:
        found = ["not yet", [str(line) for line in problem.args], problem.read_again]
    except Raised as problem:
        found = ["raised", str(problem)]
    except BaseException as error:
        found = ["raised", f"raised {type(error).__name__}: {error}"]
    return json.dumps(found)


def main() -> None:
    """Answer until there are no more questions."""
    questions, answers = (os.fdopen(os.dup(number), mode) for number, mode in ((0, "r"), (1, "w")))
    with open(os.devnull, "r+") as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    Exercise.__call__ = lambda self, *attempt: ELSEWHERE
    shell = InteractiveShell.instance()
    print(json.dumps(["ready"]), file=answers, flush=True)
    for question in questions:
        print(answer(shell, *json.loads(question)), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
