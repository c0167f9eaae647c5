"""How the checks of page `schedules` try out and explain a schedule that somebody wrote."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

from mpcourse.checks.verdict import (
    Verdict,
    correct,
    no_function,
    not_attempted,
    not_yet,
    short,
    try_out,
)
from mpcourse.schedules.actions import Action, Schedule, ScheduleError, number_actions
from mpcourse.schedules.builder import UNITS
from mpcourse.schedules.simulation import simulate
from mpcourse.schedules.validate import validate_schedule

SIZES = [(1, 2), (2, 3), (3, 5), (4, 2), (5, 7)]  # stages and micro-batches

Maker = Callable[[int, int], Schedule]


def judge_maker(
    attempt: Maker, right: Maker, known: list[tuple[Maker, str]], where: str
) -> Verdict:
    """Call the attempt for several sizes and compare what it returns with the right schedule.

    Args:
        attempt: Takes numbers of stages and micro-batches, returns a schedule.
        right: The same, as it should be.
        known: What people write instead, each with what to say about it.
        where: Where on the page to read again.
    """
    if not callable(attempt):
        return no_function(attempt, where)
    for p, m in SIZES:
        got, problem = try_out(attempt, p, m)
        if got is ...:
            return not_attempted()
        lines = [f"Given {p} stage{'s' * (p > 1)} and {m} micro-batches:"]
        problem = problem or shape_problem(got)
        if problem:
            return not_yet([*lines, problem], where)
        got, expected = as_actions(got), right(p, m)
        if got == expected:
            continue
        lines += _first_difference(got, expected)
        return not_yet([*lines, _meant(attempt, known) or _why_wrong(got, p, m)], where)
    return correct(f"All {len(SIZES)} sizes agree, also fewer micro-batches than stages.")


def _meant(attempt: Maker, known: Sequence[tuple[Maker, str]]) -> str | None:
    """The message for the wrong answer that this attempt gives at every size."""
    answers = [try_out(attempt, *size)[0] for size in SIZES]
    answers = [got if shape_problem(got) else as_actions(got) for got in answers]
    for maker, message in known:
        if answers == [maker(*size) for size in SIZES]:
            return message
    return None


def _first_difference(got: Schedule, expected: Schedule) -> list[str]:
    if len(got) != len(expected):
        return [f"expected {len(expected)} lists, got {len(got)}"]
    pairs = enumerate(zip(got, expected, strict=True))
    device, row, wanted = next((d, g, e) for d, (g, e) in pairs if g != e)
    return [f"expected on device {device}: {text_of(wanted)}", f"got: {text_of(row)}"]


def _why_wrong(schedule: Schedule, num_stages: int, num_microbatches: int) -> str:
    try:
        validate_schedule(schedule, num_stages, num_microbatches)
    except ScheduleError as error:
        return f"It cannot run: {error}."
    run = simulate(schedule, UNITS)
    return f"It is legal, but another order: time {run.makespan:g}, held {run.peak_activations}."


def shape_problem(schedule: Any) -> str | None:
    """Why something is no list of lists of actions, in words for people who write their first."""
    if not isinstance(schedule, list | tuple) or isinstance(schedule, Action):
        return f"A schedule is a list with one list per device; got {short(schedule)}."
    for row in schedule:
        if not isinstance(row, list | tuple) or isinstance(row, Action):
            return f"A schedule is a list with one list per device; in it stands {short(row)}."
        for action in row:
            if action is None:
                return "None stands in it: nothing stands for waiting, a device waits by itself."
            if isinstance(action, Action) and not _is_action(action):
                return f"An Action holds a number, a letter and a number; got {tuple(action)!r}."
            if not _is_action(action):
                return f"Each entry is an Action(stage_index, kind, index); got {short(action)}."
    return None


def _is_action(entry: Any) -> bool:
    """Whether a plain tuple says what an Action says."""
    if not isinstance(entry, tuple) or len(entry) != 3:
        return False
    return isinstance(entry[1], str) and all(isinstance(n, Integral) for n in entry[::2])


def as_actions(schedule: Sequence[Sequence[tuple]]) -> Schedule:
    """The schedule as lists of actions, whose numbers are Python's own."""
    return [[Action(int(s), kind, int(n)) for s, kind, n in row] for row in schedule]


def text_of(row: Sequence[Action]) -> str:
    """The actions of a device in a line."""
    return " ".join(map(str, row)) or "nothing"


def warmed_up(ahead_of: Callable[[int, int], int]) -> Maker:
    """1F1B with another warm-up: so many forwards, given the stages and the device."""

    def maker(p: int, m: int) -> Schedule:
        rows = []
        for rank in range(p):
            ahead = min(m, ahead_of(p, rank))
            kinds = "F" * ahead + "BF" * (m - ahead) + "B" * ahead
            rows.append(number_actions([(rank, kinds)]))
        return rows

    return maker


def transposed(maker: Maker) -> Maker:
    """The actions of a schedule in one list per micro-batch."""

    def by_microbatch(p: int, m: int) -> Schedule:
        actions = [action for row in maker(p, m) for action in row]
        return [[a for a in actions if a.microbatch_index == index] for index in range(m)]

    return by_microbatch


def why_holes_stay(schedule: Schedule) -> str:
    """Why halves of backwards leave as much idle as whole ones: W waits nowhere, or too long."""
    pairs = ((a, b) for row in schedule for a, b in pairwise(row) if a.kind == "I")
    if all(b == a._replace(kind="W") for a, b in pairs):
        return "A W beside its I fills no hole. Which devices hold less than the cap allows?"
    return "Some W wait, but fill no hole. Where does a device wait before its last I?"
