"""Checks of page `pipeline`: a ceiling, a mini-batch in pieces, a cut graph, the best split."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from mpcourse.checks.attempted_pieces import pieces_problem
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
)

CEILING = '"How fast can two devices be at best?"'


def check_ceiling(attempt: Callable[[Sequence[float], int], float]) -> Verdict:
    """Check `my_ceiling(stage_times, num_microbatches)`, a speed-up over one device.

    Args:
        attempt: Takes what a micro-batch takes in each stage, forward and backward together, and
            how many there are; returns the best speed-up when all forwards come first.
    """
    given = [
        ([2, 6], 4),
        ([3, 3], 5),
        ([6, 3, 3], 8),
        ([2, 7, 3, 4], 6),
        ([5], 4),
        ([1, 2, 9], 1),
        ([4, 1, 1, 5, 2], 40),
    ]
    return check_cases(attempt, [_ceiling_case(*each) for each in given], where=CEILING)


def _ceiling_case(times: list[float], m: int) -> Case:
    p, one, slowest = len(times), m * sum(times), max(times)
    right = one / (sum(times) + (m - 1) * slowest)
    known = (
        (
            p * m / (m + p - 1),
            "That is for equal stages: here the slowest sets the pace, the others wait for it.",
        ),
        (float(p), "That needs equal stages, all at work all the time."),
        (
            sum(times) / slowest,
            "That is for endless cutting: the pipeline fills up and drains too.",
        ),
        (
            one / ((m + p - 1) * slowest),
            "Every slot counts as the slowest there; the first piece passes each stage in its own "
            "time.",
        ),
        (one / (sum(times) + m * slowest), "One piece too many: the first is in the sum already."),
        (one / (sum(times) + (m - 1) * times[0]), "The slowest stage need not be the first."),
        (one / (sum(times) + (m - 1) * times[-1]), "The slowest stage need not be the last."),
        (right / p, "That is the share of the devices' time in use; times p it is the speed-up."),
        (1 - right / p, "That is the bubble: the idle share of the devices."),
        (1 / right, "Upside down: the time of one device over the pipeline's time."),
        (
            sum(times) + (m - 1) * slowest,
            "That is the pipeline's time; one device's over it is asked.",
        ),
    )
    hint = (
        "One device needs the sum for every piece. In the pipeline the first piece needs the sum "
        "too; how long after it does the second come out?"
    )
    return Case(f"stages that take {times} and {m} micro-batches", (times, m), right, known, hint)


Step = Callable[[nn.Module, Callable, Tensor, Tensor, int], float | Tensor]


def check_pieces(attempt: Step) -> Verdict:
    """Check `my_step(model, loss_fn, inputs, targets, split_size)`: a mini-batch in pieces.

    Args:
        attempt: Runs forward and backward piece by piece; leaves in `.grad` what the whole
            mini-batch would, and returns its mean loss.
    """
    right = "Loss and gradients are those of the whole mini-batch, ragged or not."
    return _judge(attempt, lambda: {"model": nn.Linear(3, 1, bias=False)}, right, MEANS)


CutStep = Callable[[nn.Module, nn.Module, Callable, Tensor, Tensor, int], float | Tensor]
MEANS = '"What does a short piece count?"'
CUT = '"Can each device run its own backward?"'


def check_cut_graph(attempt: CutStep) -> Verdict:
    """Check `my_cut_step(front, back, loss_fn, inputs, targets, split_size)`.

    Args:
        attempt: Does what `my_step` does through two modules, with the graph cut between them.
    """

    def parts() -> dict[str, nn.Module]:
        back = nn.Sequential(nn.Tanh(), nn.Linear(4, 1, bias=False))
        return {"front": nn.Linear(3, 4, bias=False), "back": back}

    right = "No graph crosses the cut, and loss and gradients are those of the whole mini-batch."
    return _judge(attempt, parts, right, CUT)


def _judge(attempt: Callable, make_parts: Callable[[], dict], right: str, where: str) -> Verdict:
    if not callable(attempt):
        return no_function(attempt, where)
    lines = pieces_problem(attempt, make_parts)
    if lines is None:
        return not_attempted()
    return not_yet(lines, where) if lines else correct(right)


def check_split_size(attempt: Callable[[Sequence[int], int, float, float], int]) -> Verdict:
    """Check `my_split_size(sizes, num_samples, fixed, per_sample)`: the best size, without running.

    Args:
        attempt: Takes split sizes that divide the mini-batch, its samples, and what a micro-batch
            costs in each of two equal stages; returns the size of the shortest step.
    """
    cases = [
        _split_case([3, 6, 12, 24, 48], 48, 3.0, 1.0),
        _split_case([6, 12, 24, 48, 96], 96, 0.0, 1.0),
        _split_case([5, 10, 20, 40], 40, 250.0, 1.0),
        _split_case([5, 10, 20, 40, 60, 120], 120, 12.0, 2.0),
        _split_case([60, 20, 30, 10], 60, 0.5, 0.1),
        _split_case([6, 8, 10, 12, 15, 20], 120, 1.2, 1.0),  # with another wait: 8 or 15
    ]
    return check_cases(attempt, cases, where='"What does a micro-batch cost?" and the curve')


def _split_case(sizes: list[int], rows: int, fixed: float, each: float) -> Case:
    def step(size: int, waits: float = 1) -> float:
        return (rows // size + waits) * (fixed + each * size)

    def best(waits: float) -> int:
        return min(sizes, key=lambda size: step(size, waits))

    right = best(1)
    known: list[tuple[Any, str]] = [
        (min(sizes), "The smallest has the smallest bubble, but every micro-batch has its cost."),
        (max(sizes), "Best for one device: it pays the fixed cost least often. Nothing overlaps."),
        (rows // right, "That is the number of micro-batches; asked is their size."),
        (step(right), "That is the time of the step; asked is the size that has it."),
        (sizes.index(right), "That is the position in the list, not the size."),
        (best(2), "One slot too many: each of two devices waits for one slot, not for two."),
        (best(1 / 2), "Half a slot too few: each device waits for one slot, all in all."),
    ]
    given = f"sizes {sizes}, {rows} samples, fixed cost {fixed:g}, {each:g} per sample"
    hint = "m micro-batches through two equal stages take m + 1 slots of fixed + per_sample * size."
    return Case(given, (sizes, rows, fixed, each), right, known, hint)
