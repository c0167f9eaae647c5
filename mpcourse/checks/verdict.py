"""What a check says about an attempt at an exercise, and how an attempt is tried out.

An attempt is in one of three states: not attempted (it returns `...`), not yet (with the smallest
case that fails and where to read again), correct.
"""

import copy
import math
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch

import mpcourse.devices
from mpcourse.devices.workers import Worker, collect

State = Literal["not attempted", "not yet", "correct"]
SIGNS = {"not attempted": "…", "not yet": "✗", "correct": "✓"}
COLOURS = {"not attempted": "#666666", "not yet": "#D55E00", "correct": "#009E73"}
TIME_LIMIT_S = 10.0
MOST_ITEMS = 12  # of a result, shown
DEVICES = Path(mpcourse.devices.__file__).parent  # whose code calls the attempt
CELL = re.compile(r"ipykernel_\d|ipython-input")  # in the file names of a notebook's cells

_bench = Worker("the check")  # attempts run here, so that one that never ends is stopped


@dataclass(frozen=True)
class Verdict:
    """What a check shows.

    Attributes:
        state: "not attempted", "not yet" or "correct".
        lines: What to say about it, a line each.
    """

    state: State
    lines: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"{SIGNS[self.state]} {self.state}", *self.lines])

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{escape(line)}</div>" for line in self.lines)
        colour = COLOURS[self.state]
        return (
            f'<div style="border-left:5px solid {colour};padding-left:0.7em">'
            f"<b>{SIGNS[self.state]} {self.state}</b>{lines}</div>"
        )


@dataclass(frozen=True)
class Case:
    """One input of an exercise and what should come out.

    Attributes:
        given: The input, in words.
        arguments: What the attempt is called with: a copy, which it may change.
        expected: The right result.
        known: Wrong results that people really give, each with what it shows: (result, message).
        hint: What to say about any other failure.
        same: Compares a result with the right one.
    """

    given: str
    arguments: tuple
    expected: Any
    known: Sequence[tuple[Any, str]] = field(default=())
    hint: str = ""
    same: Callable[[Any, Any], bool] | None = None


def check_cases(attempt: Callable[..., Any], cases: Sequence[Case], *, where: str) -> Verdict:
    """Call the attempt on each case, in order, and say how far it gets.

    Args:
        attempt: The learner's function.
        cases: The smallest first: the first that fails is shown.
        where: Where on the page to read again.
    """
    if not callable(attempt):
        return no_function(attempt, where)
    for case in cases:
        result, problem = try_out(attempt, *copy.deepcopy(case.arguments))
        if problem:
            return not_yet([f"Given {case.given}:", problem, case.hint], where)
        if result is ...:
            return not_attempted()
        if not (case.same or same)(result, case.expected):
            return not_yet(_compared(case, result), where)
    return correct(f"All {len(cases)} cases agree, also those that the page does not show.")


def _compared(case: Case, result: Any) -> list[str]:
    lines = [
        f"Given {case.given}:",
        f"expected {short(case.expected)}",
        f"got {short(result)}",
    ]
    # a known answer that happens to be right in this case never comes here
    meant = [message for wrong, message in case.known if (case.same or same)(result, wrong)]
    if result is None and not meant:
        return [*lines, "None is what a function without return gives back.", case.hint]
    return [*lines, *(meant or [case.hint])[:1]]


def try_out(attempt: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """Call the attempt with a time limit; return its result, or None and what went wrong."""
    job = _bench.submit(attempt, *arguments)
    try:
        return collect([job], timeout=TIME_LIMIT_S)[0], None
    except BaseException as error:  # an attempt may raise SystemExit; an interrupt goes on
        if job.done() and not job.cancelled() and job.exception() is error:
            return None, _raised(error)
        if isinstance(error, TimeoutError):
            return None, f"it had not returned after {TIME_LIMIT_S:g} seconds and was stopped."
        raise


def _raised(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if CELL.search(frame.filename)]
    frame = (own or frames)[-1]  # the last line that is the learner's, not torch's
    called = Path(frame.filename).parent != DEVICES  # else the arguments did not fit
    place = f" (line {frame.lineno} of {frame.name})" if called else ""
    words = ": ".join(filter(None, [type(error).__name__, str(error)]))
    return f"it raised {words}{place}"


def borrows(attempt: Any, names: set[str], instead: str, where: str) -> Verdict | None:
    """Not yet, if the attempt calls what it was to be written without."""
    code = getattr(attempt, "__code__", None)
    borrowed = names & set(code.co_names if code else ())
    if not borrowed:
        return None
    line = f"The result is right, but {borrowed.pop()} did the work: {instead}"
    return not_yet([line], where)


def same(result: Any, expected: Any) -> bool:
    """Equal in structure and in value; where a float takes part, up to rounding."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(result, torch.Tensor) or result.shape != expected.shape:
            return False
        rounded = result.is_floating_point() or expected.is_floating_point()
        result, expected = (t.cpu().double() for t in (result, expected))
        return torch.allclose(result, expected, rtol=1e-6 * rounded, atol=1e-9 * rounded)
    if isinstance(expected, Real) and isinstance(result, torch.Tensor) and result.numel() == 1:
        result = result.item()
    if isinstance(expected, bool | str) or expected is None:
        return type(result) is type(expected) and result == expected
    if isinstance(expected, Real):
        if not isinstance(result, Real) or isinstance(result, bool):
            return False
        if isinstance(result, int) and isinstance(expected, int):
            return result == expected  # a large count that is one off is wrong
        return math.isclose(result, expected, rel_tol=1e-6, abs_tol=1e-6)
    if isinstance(expected, dict):
        if not isinstance(result, dict) or set(result) != set(expected):
            return False
        return all(same(result[key], expected[key]) for key in expected)
    if isinstance(expected, tuple | list):
        if not isinstance(result, tuple | list) or len(result) != len(expected):
            return False
        return all(same(r, e) for r, e in zip(result, expected, strict=True))
    return result == expected


def short(value: Any) -> str:
    """A value in few words: small tensors by their numbers, large ones by their shape."""
    if isinstance(value, torch.Tensor):
        if value.numel() <= MOST_ITEMS:
            return f"tensor {short(value.detach().tolist())}"
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, dict):
        return _joined([f"{key!r}: {short(item)}" for key, item in value.items()], "{}")
    if isinstance(value, list | tuple):
        return _joined([short(item) for item in value], "[]" if isinstance(value, list) else "()")
    if isinstance(value, float):
        return f"{value + 0.0:.7g}"  # as many digits as `same` looks at, and -0 is 0
    words = repr(value)
    return words if len(words) <= 80 else words[:77] + "…"


def _joined(items: Sequence[str], ends: str) -> str:
    more = [f"… ({len(items)} in all)"] if len(items) > MOST_ITEMS else []
    return ends[0] + ", ".join([*items[:MOST_ITEMS], *more]) + ends[1]


def no_function(attempt: Any, where: str) -> Verdict:
    """What was handed in is no function: the stub's `...`, or something else."""
    if attempt is ...:
        return not_attempted()
    return not_yet([f"This check takes a function; it got {short(attempt)}."], where)


def not_attempted() -> Verdict:
    """The stub is as it was."""
    return Verdict("not attempted", ("Replace the ... in the cell above, then run both cells.",))


def not_yet(lines: Sequence[str], where: str) -> Verdict:
    """Something is wrong still."""
    return Verdict("not yet", (*filter(None, lines), f"Read again: {where}."))


def correct(line: str) -> Verdict:
    """Everything is right."""
    return Verdict("correct", (line,))
