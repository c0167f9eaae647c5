"""Checks: the best cut by time, the best under a limit, the share of devices in use."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from mpcourse.checks.verdict import Case, Verdict, check_cases
from mpcourse.schedules.actions import Action
from mpcourse.schedules.timeline import Event, Timeline

F0, F1, B1 = Action(0, "F", 0), Action(1, "F", 0), Action(1, "B", 0)

Times = Sequence[float]
Known = list[tuple[Any, str]]


def _works(forward: Times, backward: Times) -> list[float]:
    """Of each cut from 1: the work of the device that has more of it."""
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    return [max(sum(both[:cut]), sum(both[cut:])) for cut in range(1, len(both))]


def _best(works: Sequence[float], allowed: Sequence[bool] | None = None) -> int | None:
    """The first cut with the least work among those allowed, counted from 1."""
    allowed = [True] * len(works) if allowed is None else allowed
    cuts = [cut for cut, fine in enumerate(allowed, start=1) if fine]
    return min(cuts, key=lambda cut: works[cut - 1]) if cuts else None


def check_cut_by_time(attempt: Callable[[Times, Times], int]) -> Verdict:
    """Check `my_cut_by_time(forward, backward)`: the cut whose busier device has the least work.

    Args:
        attempt: Takes the forward and the backward time of each block, returns how many blocks the
            first device gets.
    """
    cases = [
        _time_case([1, 1, 1, 1], [2, 2, 2, 2]),
        _time_case([4, 1, 1, 1], [3, 2, 1, 1]),
        _time_case([3, 1, 1, 1], [2, 2, 3, 3]),
        _time_case([2, 2, 5, 1], [3, 1, 1, 1]),
        _time_case([1, 1, 3, 1], [2, 1, 1, 2]),
        _time_case([1, 2, 1, 1], [2, 2, 1, 2]),
        _time_case([9, 1, 1, 1], [18, 2, 2, 2]),
        _time_case([1, 1, 1, 9], [2, 2, 2, 18]),
        _time_case([1, 2, 1], [0, 0, 0]),  # two cuts are as good
    ]
    return check_cases(attempt, cases, where='"And the time?" and what follows it')


def _time_case(forward: list[float], backward: list[float]) -> Case:
    """Each of these cases tells one wrong way from the right one; earlier ones agree there."""
    works = _works(forward, backward)
    right, count = _best(works), len(forward)
    before = [0.0, *accumulate(f + b for f, b in zip(forward, backward, strict=True))]
    half = before[-1] / 2
    nothing = [0.0] * count
    known = [
        (
            max(k for k in range(1, count) if works[k - 1] == works[right - 1]),
            "That cut is as good; asked is the smallest one.",
        ),
        (0, "The first device would have no block."),
        (count, "The second device would have no block."),
        (count // 2, "That is half of the blocks; blocks take different times."),
        (_best(_works(forward, nothing)), "Forward alone says this; the backward counts as well."),
        (_best(_works(nothing, backward)), "Backward alone says this; the forward counts as well."),
        (
            next(k for k in range(1, count + 1) if before[k] >= half),
            "You stop when half is reached; with one block fewer the busier device has less to do.",
        ),
        (
            max(k for k in range(count) if before[k] <= half),
            "You stop before half is passed; with one more block the busier device has less to do.",
        ),
        (right - 1, "That is the position of the first device's last block; count its blocks."),
        (works[right - 1], "That is the work of the busier device; return the number of blocks."),
    ]
    given = f"forward {forward} and backward {backward}"
    hint = f"With {right} the busier device works {works[right - 1]:g}; no other cut has less."
    return Case(given, (forward, backward), right, known, hint)


def check_cut_within(
    attempt: Callable[[Times, Times, Sequence[int], int], int | None],
) -> Verdict:
    """Check `my_cut_within(forward, backward, crossing, limit)`: the best cut under a limit.

    Args:
        attempt: Takes the times of each block, the bytes that each cut sends forward and the most
            bytes that may cross in a training step, returns the number of blocks of the first
            device, or None.
    """
    cases = [
        _limit_case([64, 16, 64, 64, 64, 8], 50),
        _limit_case([64, 16, 64, 40, 64, 8], 50),
        _limit_case([64, 16, 64, 40, 64, 8], 32),
        _limit_case([64, 16, 64, 40, 64, 8], 1000),
        _limit_case([64, 16, 64, 40, 64, 8], 10),
    ]
    return check_cases(
        attempt, cases, where='"Which cut sends the most?" and "Why do others find it slower?"'
    )


def _limit_case(crossing: list[int], limit: int) -> Case:
    forward, backward = [2, 2, 2, 2, 2, 2, 3], [4, 4, 4, 4, 4, 4, 6]
    works = _works(forward, backward)

    def best(fits: Callable[[int], bool]) -> int | None:
        return _best(works, [fits(size) for size in crossing])

    right = best(lambda size: 2 * size <= limit)
    allowed = [cut for cut, size in enumerate(crossing, start=1) if 2 * size <= limit]
    known: Known = [
        (best(lambda size: size <= limit), "The gradient comes back: as many bytes once more."),
        (_best(works), "The best by time alone; it sends more than the limit."),
        (best(lambda size: 2 * size < limit), "Exactly the limit is still allowed."),
        (
            crossing.index(min(crossing)) + 1,
            "That cut sends the least; asked is the one with the best time within the limit.",
        ),
    ]
    if right is None:
        known.append((0, "When no cut is within the limit, return None."))
    else:
        known.append((None, "A cut within the limit exists; None is for when there is none."))
        known.append((allowed[0], "That is the first cut within the limit, not the fastest."))
        known.append((allowed[-1], "That is the last cut within the limit, not the fastest."))
        known.append((right - 1, "That is a position in the list; return the number of blocks."))
    given = f"forward {forward}, backward {backward}, crossing {crossing}, limit {limit}"
    hint = "crossing[k - 1] belongs to the cut after k blocks."
    if right is None:
        hint = "No cut is within the limit: return None."
    return Case(given, (forward, backward, crossing, limit), right, known, hint)


def exercise_timeline() -> Timeline:
    """The timeline of the exercise: a step over two devices, with its two copies."""
    return _timeline(2, (0, F0, 4), (0, "copy", 1), (1, F1, 4), (1, B1, 8), (1, "copy", 1))


def _timeline(num_devices: int, *jobs: tuple[int, Action | str, float]) -> Timeline:
    """One job after the other, whichever device has it; at last a backward on device 0."""
    events, now = [], 0.0
    for device, action, duration in (*jobs, (0, Action(0, "B", 0), 8)):
        events.append(Event(device, action, now, now + duration))
        now += duration
    return Timeline(tuple(events), num_devices)


def check_used_share(attempt: Callable[[Timeline], float]) -> Verdict:
    """Check `my_used_share(timeline)`: the share of all devices' time in which they compute.

    Args:
        attempt: Takes a `Timeline` whose copies have the action "copy", returns 0 to 1.
    """
    both = (Event(0, F0, 0, 4), Event(0, "copy", 4, 5), Event(1, F1, 5, 8))
    idle = _timeline(3, (0, F0, 4), (1, "copy", 2))
    cases = [
        _share_case(
            "0F0 from 0 to 4 and a copy from 4 to 5 on device A, then 1F0 from 5 to 8 on device B "
            "beside 0F1 from 5 to 10 on device A",
            Timeline((*both, Event(0, Action(0, "F", 1), 5, 10)), 2),
        ),
        _share_case("the timeline above", exercise_timeline()),
        _share_case("three devices, of which two compute nothing", idle),
    ]
    return check_cases(attempt, cases, where='"Who works when?"')


def _share_case(given: str, timeline: Timeline) -> Case:
    work = sum(event.duration for event in timeline.events if event.action != "copy")
    every = sum(event.duration for event in timeline.events)
    whole, devices = timeline.makespan, timeline.num_devices
    right = work / (devices * whole)
    first = sum(e.duration for e in timeline.events if e.action != "copy" and e.device_index == 0)
    known: Known = [
        (every / (devices * whole), "Copies count as work there: nothing is computed meanwhile."),
        (1 - right, "That is the idle share; asked is the share in use."),
        (timeline.bubble_fraction, "That is idle, not in use, and copies count as work in it."),
        (work / whole, "Each device has the whole step: divide by the number of devices too."),
        (every / whole, "Divide by the number of devices too, and leave the copies out."),
        (work / every, "Waiting is time as well: divide by devices × the time of the step."),
        (
            work / (devices * (whole - (every - work))),
            "The step lasts as long as it does: copies are in it.",
        ),
        (work / (2 * whole), "There may be other than two devices: timeline.num_devices."),
        (first / whole, "That is the first device alone."),
        (work, "Those are units of time; a share has none."),
        (100 * right, "That is in percent; give a share between 0 and 1."),
    ]
    hint = "(time in which devices compute) / (devices × time of the whole step)"
    return Case(given, (timeline,), right, known, hint)
