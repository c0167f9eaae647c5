"""What an exercise is, and the one engine that judges an attempt at it.

An attempt is in one of three states: not attempted (the stub's `...` is still there), not yet (with
the smallest case that fails and where to read again), correct. Whoever finds out says so in one
way: by returning, by raising `NotAttempted`, or by raising `NotYet`.
"""

import concurrent.futures
import copy
import functools
import inspect
import math
import random
import re
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import mpcourse
from mpcourse.devices.streams import CpuCore
from mpcourse.devices.workers import Worker, collect

State = Literal["not attempted", "not yet", "correct"]
SIGNS = {"not attempted": "…", "not yet": "✗", "correct": "✓"}
COLOURS = {"not attempted": "#666666", "not yet": "#D55E00", "correct": "#009E73"}
TIME_LIMIT_S = 10.0
TOO_LATE = "it had not returned after {:g} seconds and was stopped."
NO_RETURN = "None is what a function without return gives back."
MOST_ITEMS = 12  # of a result, shown
# whose code calls the attempt
CALLERS = {Path(module.__file__).parent for module in (mpcourse, concurrent.futures)}
CHANGE = " => "  # between a piece of code and what stands there instead
CELL = re.compile(r"ipykernel_\d|ipython-input")  # in the file names of a notebook's cells

# Attempts run here, so that one that never ends is stopped. On one core: on a busy machine a small
# product takes many times as long when threads that share it wait for each other.
_bench = Worker("the check", CpuCore())


class NotAttempted(Exception):
    """The stub is as it was."""


class Raised(Exception):
    """An attempt raised something, or was stopped; the argument says what."""


class NotYet(Exception):
    """Something is wrong still; the arguments are the lines that say what (empty ones go).

    `read_again` is another heading than the exercise's, if it explains this better.
    """

    def __init__(self, *lines: str, read_again: str = "") -> None:
        super().__init__(*lines)
        self.read_again = read_again


class Elsewhere:
    """An attempt that runs in another process, which shows nothing of it but its outcomes."""

    def taken(self) -> None:
        """As `Exercise.taken`, over there."""
        raise NotImplementedError

    def outcome_of(self, number: int) -> Any:
        """What comes out on case `number`; raises as `played` does."""
        raise NotImplementedError


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


def same(result: Any, expected: Any) -> bool:
    """Equal in structure and in value; where a float takes part, up to rounding."""
    if isinstance(expected, torch.Tensor):
        if hasattr(result, "__array__"):  # numpy's will do
            result = torch.as_tensor(result)
        if not isinstance(result, torch.Tensor) or result.shape != expected.shape:
            return False
        rounded = result.is_floating_point() or expected.is_floating_point()
        result, expected = (t.detach().cpu().double() for t in (result, expected))
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
    return bool(result == expected)


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


def expected_and_got(outcome: Any, expected: Any) -> list[str]:
    """What came out beside what should have; where both read alike, also where they differ most."""
    lines = [f"expected {short(expected)}", f"got {short(outcome)}"]
    both = expected, outcome
    if short(expected) != short(outcome) or not all(isinstance(t, torch.Tensor) for t in both):
        return lines
    right, found = (tensor.detach().cpu().double() for tensor in both)
    gaps = (found - right).abs().nan_to_num(math.inf).masked_fill(found == right, 0.0)
    if gaps.any():
        at = tuple(int(i) for i in torch.unravel_index(gaps.argmax(), gaps.shape))
        where = f"most different at {[*at]}"
        lines.append(f"{where}: expected {short(right[at].item())}, got {short(found[at].item())}")
    return lines


def first_difference(outcome: Any, expected: Mapping[str, Any]) -> list[str]:
    """Of several named results, the first that differs, beside what it should be."""
    found = outcome or {}
    name = next(name for name, right in expected.items() if not same(found.get(name), right))
    return [f"{name}: expected {short(expected[name])}, got {short(found.get(name))}"]


def call(attempt: Callable[..., Any], *case: Any) -> Any:
    """The plain world: the case is the attempt's arguments, what it returns is the outcome."""
    return attempt(*case)


def leaving_alone(words: str, world: Callable[..., Any] = call) -> Callable[..., Any]:
    """A world in which what is handed in has to stay as it is; else `words` are said."""

    def play(attempt: Callable[..., Any], *case: Any) -> Any:
        before = copy.deepcopy(case)
        outcome = world(attempt, *case)
        if not same(case, before):
            raise NotYet(words)
        return outcome

    return play


def numbers(value: Any) -> Any:
    """Tensors and arrays as Python's own numbers, inside a list or tuple as well."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [*map(numbers, value)] if isinstance(value, list | tuple) else value


def call_for_numbers(attempt: Callable[..., Any], *case: Any) -> Any:
    """As `call`, where numbers may come in a tensor or an array."""
    return numbers(attempt(*case))


def slip(solution: Callable[..., Any], *changes: str) -> Any:
    """The solution with pieces of its code changed, wherever they stand: "old => new" each.

    Raises:
        ValueError: A piece is not there.
    """
    source = textwrap.dedent(inspect.getsource(solution))
    for old, new in (change.split(CHANGE) for change in changes):
        if old not in source:
            raise ValueError(f"{solution.__name__} has no {old!r}")
        source = source.replace(old, new)
    names = dict(vars(inspect.getmodule(solution)))
    exec(source, names)
    return names[solution.__name__]


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise: what is asked, how an attempt is judged, and every word said about it.

    An attempt is played on each case in turn. Its outcome has to be the solution's; where it is
    not, the message is that of the wrong answer which does the same as the attempt.

    Attributes:
        solution: The function that is asked for, its docstring the explanation. Where values are
            asked for: a function that returns them (its body is what the page shows).
        read_again: The heading on the page that explains it.
        cases: What the attempt is played on, the smallest first, none of them on the page; a tuple
            of arguments each. The attempt gets copies.
        given: The case in words: a text with a place `{}` for each argument, or a function of them.
        play: `play(attempt, *case)` puts the attempt into its world and returns the outcome. May
            raise `NotYet` where nothing can be compared.
        same: Compares an outcome with the solution's.
        look: `look(outcome, *case)` where outcomes may differ and all be right, in place of `same`:
            raises `NotYet`, or returns what `correct` shows. Like `same` it sees the outcome alone.
        compared: The lines that show both.
        hint: What to say when no known wrong answer fits: a text, or a function of the outcome and
            of the solution's. A word in braces in the text is filled in: `{0}` with the case's
            argument, `{expected}` with what is right.
        wrong: The words for a wrong answer -> the function that gives it, or a list of several. A
            text, or a tuple of texts, is the solution with these slips: "old => new" in its code.
            The words are filled in as the hint is.
        errors: A pattern in the line that says what was raised, or that it was stopped -> what to
            say to it.
        also_right: The solution in other forms; texts are changes of it here, too.
        correct: What to say when everything is right; `{count}` is the number of cases, `{outcome}`
            that of the last.
        values: Whether values are asked for, and no function.
    """

    solution: Callable[..., Any]
    read_again: str
    cases: Sequence[tuple] = ((),)
    given: str | Callable[..., str] = ""
    play: Callable[..., Any] = call
    same: Callable[[Any, Any], bool] = same
    look: Callable[..., Any] | None = None
    compared: Callable[[Any, Any], list[str]] = expected_and_got
    hint: str | Callable[[Any, Any], str] = ""
    wrong: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    also_right: Sequence[Any] = ()
    correct: str = "All {count} cases agree, also those that the page does not show."
    values: bool = False
    # what the solution and the wrong answers came to: played once for all attempts
    _known: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple(self.cases))  # an attempt cannot clear them

    def __call__(self, *attempt: Any) -> Verdict:
        """Judge an attempt: the learner's function, or the values that were asked for."""
        try:
            with generators_kept():
                outcome = self._judge(self.taken(attempt))
        except NotAttempted:
            line = "Replace the ... in the cell above, then run both cells."
            return Verdict("not attempted", (line,))
        except NotYet as problem:
            where = problem.read_again or self.read_again
            lines = [*filter(None, problem.args), f"Read again: {where}."]
            return Verdict("not yet", tuple(lines))
        said = self.correct.format(count=len(self.cases), outcome=outcome)
        return Verdict("correct", tuple(said.splitlines()))

    def taken(self, attempt: tuple) -> Any:
        """The attempt in the form that is played; the stub and what is no function end here."""
        if isinstance(attempt[0], Elsewhere):
            attempt[0].taken()
            return attempt[0]
        if any(each is ... for each in attempt):
            raise NotAttempted
        if self.values:
            return attempt[0] if len(attempt) == 1 else attempt
        (attempt,) = attempt
        if not callable(attempt):
            raise NotYet(f"This check takes a function; it got {short(attempt)}.")
        return attempt if inspect.isclass(attempt) else _reporting_the_stub(attempt)

    def _judge(self, attempt: Any) -> Any:
        """Play the attempt on every case; return its last outcome if all are right."""
        for number, case in enumerate(self.cases):
            try:
                outcome = self._outcome(attempt, case)
                if self.look:
                    outcome = self._looked_at(outcome, case)
                    continue
            except NotYet as problem:
                raise NotYet(self._given(case), *problem.args) from None
            expected = self._expected(case)
            if not self._same(outcome, expected):
                lines = self.compared(outcome, expected)
                why = self._why(attempt, number, outcome, lines)
                raise NotYet(self._given(case), *lines, *why)
        return outcome

    def _looked_at(self, outcome: Any, case: tuple) -> Any:
        """As `look`; what it cannot even look at, or not in time, is wrong."""
        try:
            return played(self.look, outcome, case)
        except Raised:
            raise NotYet(f"got {short(outcome)}") from None

    def _why(self, attempt: Any, number: int, outcome: Any, lines: list[str]) -> list[str]:
        case = self.cases[number]
        expected = self._expected(case)

        def filled_in(words: str) -> str:
            return words.format(*case, expected=short(expected))

        # what a function says may show a dict, whose braces are no places to fill in
        hint = self.hint(outcome, expected) if callable(self.hint) else filled_in(self.hint)
        why = [NO_RETURN, hint] if outcome is None else [hint]
        words = self._meant(attempt, number, outcome)
        # a piece of what is said anyway stands for all of it
        if words is None or any(filled_in(words) in line for line in [*lines, *why]):
            return why
        return [filled_in(words)]

    def _given(self, case: tuple) -> str:
        words = self.given.format(*case) if isinstance(self.given, str) else self.given(*case)
        return words and f"Given {words}:"

    def _expected(self, case: tuple) -> Any:
        """The solution's outcome, which is played once for all attempts."""
        key = id(self.solution), id(case)
        if key not in self._known:
            solution = self.solution() if self.values else self.solution
            self._known[key] = self.play(solution, *copy.deepcopy(case))
        return self._known[key]

    def _outcome(self, attempt: Any, case: tuple) -> Any:
        """Play the attempt on one case, here or where it runs."""
        try:
            if isinstance(attempt, Elsewhere):
                return attempt.outcome_of([*map(id, self.cases)].index(id(case)))
            return played(self.play, attempt, case)
        except Raised as problem:
            line = str(problem)
        hint = "" if callable(self.hint) else self.hint.format(*case, expected="")
        why = [words for piece, words in self.errors.items() if re.search(piece, line)]
        raise NotYet(line, *[*why, hint][:1])

    def _meant(self, attempt: Any, number: int, outcome: Any) -> str | None:
        """The words for the wrong answer that has done what the attempt does, up to case `number`.

        If there are several, it is the one that agrees with the attempt on the most later cases,
        the first of them if several do.
        """
        so_far = [(self.cases[number], outcome)]  # first what tells most of them apart
        so_far += [(case, self._expected(case)) for case in self.cases[:number]]
        fitting = [
            (words, answer)
            for words, answer in self.wrong_answers
            if words not in self.errors.values()  # what is said of an error has no outcome
            and all(self._agree(answer, *each) for each in so_far)
        ]
        if len(fitting) < 2:
            return fitting[0][0] if fitting else None
        later = [(each, self._quietly(attempt, each)) for each in self.cases[number + 1 :]]
        return max(fitting, key=lambda pair: sum(self._agree(pair[1], *each) for each in later))[0]

    def _agree(self, answer: Any, case: tuple, outcome: Any) -> bool:
        key = id(answer), id(case)
        tries, theirs = self._known.get(key, (0, ...))
        if theirs is ... and tries < 2:  # there was none: in time, it may come
            theirs = self._quietly(answer, case)
            self._known[key] = tries + 1, theirs
        return theirs is not ... and outcome is not ... and self._same(outcome, theirs)

    def _same(self, outcome: Any, expected: Any) -> bool:
        """As `same`; what it cannot even compare is not the same."""
        try:
            return self.same(outcome, expected)
        except Exception:
            return False

    def _quietly(self, attempt: Any, case: tuple) -> Any:
        """The outcome, or `...` if there is none. Its warnings are not shown."""
        try:
            with warnings.catch_warnings(action="ignore"):
                return self._outcome(attempt, case)
        except (NotYet, NotAttempted):
            return ...

    @functools.cached_property
    def wrong_answers(self) -> list[tuple[str, Any]]:
        """Each known wrong answer with its words, in order."""
        return [
            (words, self.answer(each))
            for words, answers in self.wrong.items()
            for each in (answers if isinstance(answers, list) else [answers])
        ]

    def answer(self, form: Any) -> Any:
        """An answer in the form that is played: texts become the solution with these changes."""
        changes = (form,) if isinstance(form, str) else form
        if not isinstance(changes, tuple) or {CHANGE in str(each) for each in changes} != {True}:
            return form
        changed = slip(self.solution, *changes)
        return changed() if self.values else changed

    def solution_text(self) -> tuple[str, str]:
        """The explanation of the solution, and its code as the learner would have written it."""
        source = textwrap.dedent(inspect.getsource(self.solution))
        words = inspect.getdoc(self.solution) or ""
        body = re.sub(r'\n +"""(.|\n)*?"""(?=\n)', "", source, count=1).rstrip()
        if self.values:
            lines = textwrap.dedent(body.split("\n", 1)[1]).splitlines()
            body = "\n".join(line for line in lines if not line.startswith("return "))
        return words, body


def played(play: Callable[..., Any], attempt: Any, case: tuple) -> Any:
    """The outcome of an attempt on one case, in a thread of its own and with a time limit."""
    job = _bench.submit(play, attempt, *copy.deepcopy(case))
    try:
        return collect([job], timeout=TIME_LIMIT_S)[0]
    except (NotYet, NotAttempted):
        raise
    except BaseException as error:  # an attempt may raise SystemExit; an interrupt goes on
        if job.done() and not job.cancelled() and job.exception() is error:
            raise Raised(raised(error)) from None
        if isinstance(error, TimeoutError):
            raise Raised(TOO_LATE.format(TIME_LIMIT_S)) from None
        raise
    finally:
        del job  # break the cycle job -> error -> traceback -> frame -> job


def _reporting_the_stub(attempt: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(attempt)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        result = attempt(*args, **kwargs)
        if result is ...:
            raise NotAttempted
        return result

    return reporting


def raised(error: BaseException) -> str:
    """What an attempt raised, and in which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if CELL.search(frame.filename)]
    called = [f for f in frames if not CALLERS & set(Path(f.filename).parents)]
    frame = (own or called or [None])[-1]  # none: the arguments did not fit
    place = f" (line {frame.lineno} of {frame.name})" if frame else ""
    words = ": ".join(filter(None, [type(error).__name__, str(error)]))
    notes = [note for note in getattr(error, "__notes__", ()) if not note.endswith("the check")]
    return ", ".join([f"it raised {words}{place}", *notes])


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whoever draws or seeds meanwhile: torch, Python and numpy go on as if nobody had."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def during(what: str) -> Iterator[None]:
    """What is raised in this block is said to have been raised during it."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def refuse_borrowed(attempt: Any, names: set[str], instead: str) -> None:
    """Raise `NotYet` if the attempt calls what it was to be written without."""
    refuse(borrowed(attempt, names), instead)


def borrowed(attempt: Any, names: set[str]) -> list[str]:
    """Which of the names the attempt calls."""
    code = getattr(inspect.unwrap(attempt), "__code__", None)
    return sorted(names & set(code.co_names if code else ()))


def refuse(names: list[str], instead: str) -> None:
    """Raise `NotYet` if there are any such names."""
    if names:
        raise NotYet(f"The result is right, but {names[0]} did the work: {instead}")
