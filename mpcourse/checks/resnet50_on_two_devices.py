"""Checks: a split ResNet50, the best cut by time and under a limit, the share in use."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from torch import nn

from mpcourse.checks.attempted_networks import network_problem
from mpcourse.checks.attempted_shares import Known, same_number, share_cases
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
)
from mpcourse.schedules.timeline import Timeline

Times = Sequence[float]


def _works(forward: Times, backward: Times) -> list[float]:
    """Of each cut from 1: the work of the device that has more of it."""
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    return [max(sum(both[:cut]), sum(both[cut:])) for cut in range(1, len(both))]


def _best(works: Sequence[float], allowed: Sequence[bool] | None = None) -> int | None:
    """The first cut with the least work among those allowed, counted from 1."""
    allowed = [True] * len(works) if allowed is None else allowed
    cuts = [cut for cut, fine in enumerate(allowed, start=1) if fine]
    return min(cuts, key=lambda cut: works[cut - 1]) if cuts else None


def check_split_resnet50(attempt: Callable[..., nn.Module]) -> Verdict:
    """Check `MySplitResNet50(first, second, num_classes)`.

    Args:
        attempt: A class of modules, or what makes one, with layers of torchvision's names.
    """
    where = '"One network, cut once"'
    if not callable(attempt):
        return no_function(attempt, where)
    lines = network_problem(attempt)
    if lines is ...:
        return not_attempted()
    right = "Torchvision's weights fit, the outputs are its own, and one tensor crosses each way."
    return not_yet(lines, where) if lines else correct(right)


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
        _apart_case([1, 1, 2, 3, 5], [5, 1, 3, 1, 1]),
    ]
    return check_cases(attempt, cases, where='"And the time?"')


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
    return Case(given, (forward, backward), right, known, hint, same_number)


def _apart_case(forward: list[float], backward: list[float]) -> Case:
    """Here the busiest forward and the busiest backward are on different devices."""
    right = _time_case(forward, backward)
    cuts = range(1, len(forward))
    wrong = min(cuts, key=lambda k: sum(max(sum(t[:k]), sum(t[k:])) for t in (forward, backward)))
    words = "Add up forward and backward of each device first, then take the busier device."
    return replace(right, known=[(wrong, words), *right.known])


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
        _limit_case([8, 8, 8, 8, 8, 8], 16, TIED),
        _limit_case([8, 8, 8, 8, 8, 8], 16, LATE),
    ]
    return check_cases(attempt, cases, where='"Which cut sends the most?" and "And the time?"')


EVEN = ([2, 2, 2, 2, 2, 2, 3], [4, 4, 4, 4, 4, 4, 6])
TIED = ([1, 1, 1, 0, 1, 1, 1], [2, 2, 2, 0, 2, 2, 2])  # behind three blocks as behind four
LATE = ([5, 5, 1, 1, 1, 1, 1], [1, 1, 1, 1, 5, 5, 10])  # the backward pulls the cut to the end


def _limit_case(crossing: list[int], limit: int, times: tuple[list, list] = EVEN) -> Case:
    forward, backward = times
    works = _works(forward, backward)
    nothing = [0] * len(forward)

    def best(fits: Callable[[int], bool]) -> int | None:
        return _best(works, [fits(size) for size in crossing])

    right = best(lambda size: 2 * size <= limit)
    allowed = [cut for cut, size in enumerate(crossing, start=1) if 2 * size <= limit]
    fits = [2 * size <= limit for size in crossing]
    tied = [cut for cut in allowed if works[cut - 1] == works[right - 1]] if right else []
    known: Known = [
        (
            _best(_works(forward, nothing), fits),
            "Forward alone says this; the backward counts as well.",
        ),
        *((cut, "That cut is as good; asked is the smallest one.") for cut in tied[1:]),
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
    return Case(given, (forward, backward, crossing, limit), right, known, hint, same_number)


def check_used_share(attempt: Callable[[Timeline], float]) -> Verdict:
    """Check `my_used_share(timeline)`: the share of all devices' time in which they compute.

    Args:
        attempt: Takes a `Timeline` whose copies have the action "copy", returns 0 to 1.
    """
    return check_cases(attempt, share_cases(), where='"Who works when?"')
