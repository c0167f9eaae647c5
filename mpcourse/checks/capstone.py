"""Checks of page `capstone`: a pipeline's speed-up, a new cut."""

import copy
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import mean
from typing import Any

from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    no_function,
)
from mpcourse.splitting.splits import balanced_bounds

Known = list[tuple[Any, str]]


def check_pipeline_speedup(
    attempt: Callable[[Sequence[float], Sequence[float], int], float],
) -> Verdict:
    """Check `my_pipeline_speedup(before, after, num_microbatches)`.

    Args:
        attempt: Takes the forward times of the stages before and after pruning, and a count;
            returns how many times as fast the pipeline's step becomes.
    """
    cases = [
        _speedup_case([6, 5], [2, 5], 8),
        _speedup_case([4, 4, 4], [4, 1, 4], 4),
        _speedup_case([6, 2], [3, 2], 1),
        _speedup_case([5, 5], [5, 5], 3),
        _speedup_case([2, 8, 3, 1], [2, 2, 3, 1], 16),
        _speedup_case([10, 1], [1, 1], 100),
    ]
    where = '"By how much does pruning a stage speed up the pipeline?"'
    return check_cases(attempt, cases, where=where)


def _speedup_case(before: list[float], after: list[float], m: int) -> Case:
    def step(times: list[float]) -> float:
        return sum(times) + (m - 1) * max(times)

    each = [old / new for old, new in zip(before, after, strict=True)]
    right = step(before) / step(after)
    known: Known = [
        (max(each), "That is the pruned stage's own speed-up; the others are as slow as before."),
        (mean(each), "Speed-ups of stages cannot be averaged: the slowest stage sets the pace."),
        (sum(each), "Speed-ups cannot be added up: work out both steps, divide once."),
        (sum(before) / sum(after), "That is what one device gains: here the stages overlap."),
        (
            max(before) / max(after),
            "That is the ratio of the slowest times: right for endless micro-batches. A pipeline "
            "also fills and drains, and there every stage takes its own time.",
        ),
        (1 / right, "Upside down: the time before over the time after."),
        (step(before) - step(after), "That is the time saved; asked is before over after."),
        (right - 1, "That is how much faster it becomes; asked is how many times as fast."),
    ]
    hint = "GPipe takes sum(times) + (m - 1) * max(times), for forwards and backwards alike."
    given = f"stages of {before}, then {after}, and {m} micro-batches"
    return Case(given, (before, after, m), right, known, hint)


def check_new_cut(attempt: Callable[[Sequence[float], Sequence[float]], int]) -> Verdict:
    """Check `my_new_cut(work, keep)`: where to cut after pruning.

    Args:
        attempt: Takes the forward work of every block before pruning and the share of its channels
            that each keeps; returns how many blocks the first device gets.
    """
    cases = [  # in the first, all wrong answers differ
        _cut_case([8, 8, 8, 8, 2, 2, 2, 2, 4, 6], [0.25, 1, 0.25, 0.5, 0.5, 0.5, 0.5, 1, 1, 1]),
        _cut_case([8, 4, 6, 2, 2, 4, 4, 8], [0.5, 0.5, 0.5, 0.75, 0.5, 0.5, 0.25, 1.0]),
        _cut_case([8, 8, 8, 8, 8, 8, 8, 8], [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]),
        _cut_case([3, 3, 3, 3, 3], [1.0] * 5),
        _cut_case([4, 4, 4, 4, 4, 4, 4], [1.0, 1.0, 0.25, 0.25, 0.25, 1.0, 1.0]),
        _cut_case([9, 6, 6, 5, 5, 4], [0.5, 1.0, 0.5, 0.5, 1.0, 1.0]),
        _cut_case([2, 9], [0.5, 1.0]),
        _cut_case([6, 6, 6, 2, 2, 8], [1.0, 0.5, 1.0, 1.0, 1.0, 0.25]),
    ]
    where = '"Where is half now?"'
    if not callable(attempt):
        return no_function(attempt, where)
    return check_cases(_without_changes(attempt), cases, where=where)


def _without_changes(attempt: Callable[..., Any]) -> Callable[..., Any]:
    """The attempt, refused where it changes the lists that it is given."""

    def run(*given: list[float]) -> Any:
        before = copy.deepcopy(given)
        result = attempt(*given)
        if given != before:
            raise ValueError("your function has changed the list that it was given: copy it first")
        return result

    return run


def _cut_case(work: list[float], keep: list[float]) -> Case:
    read = [1.0, *keep[:-1]]  # the share of its inputs that a block still reads
    after = [w * i * o for w, i, o in zip(work, read, keep, strict=True)]

    def best(times: Sequence[float]) -> int:
        return balanced_bounds(times, 2)[1]

    right = best(after)
    outputs = [w * o for w, o in zip(work, keep, strict=True)]
    squares = [w * o * o for w, o in zip(work, keep, strict=True)]
    turned = [w * i * o for w, i, o in zip(work, [keep[-1], *keep], keep, strict=False)]
    past_half = 1 + sum(total < sum(after) / 2 for total in accumulate(after))
    busier = [max(sum(after[:cut]), sum(after[cut:])) for cut in range(1, len(after))]
    last = len(busier) - busier[::-1].index(min(busier))
    known: Known = [
        (last, "Two cuts are equally good: asked is the smaller one."),
        (best(work), "That is the old cut: the pruned blocks have less work now."),
        (best(outputs), "A block that reads pruned channels has fewer inputs, too."),
        (best(squares), "A block reads what the block before it keeps, not what it keeps itself."),
        (best(turned), "The first block reads the image, not what the last block keeps."),
        (len(work) // 2, "Half of the blocks is not half of the work."),
        (past_half, "The first cut past half may be worse than the one before: compare them."),
        (right - 1, "One off: the answer is how many blocks the first device gets."),
        (len(work) - right, "That is how many blocks the second device gets."),
        (after, "That is the work that is left; asked is the cut."),
    ]
    hint = "work * share of inputs * share of outputs; then the cut whose busier side is least busy"
    given = f"blocks with work {work} that keep {keep}"
    return Case(given, (work, keep), right, known, hint)
