"""Checks: the cubic schedule, kept zeros, a proximal step, one regrowth step."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.attempted_zeros import OPTIMIZERS, keeps_zeros
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    same,
    try_out,
)

Known = list[tuple[Any, str]]
Pair = tuple[nn.Linear, nn.Linear]


def check_cubic(attempt: Callable[[int, int, int, float, float], float]) -> Verdict:
    """Check `my_cubic(step, begin, end, initial, final)`: the sparsity at a step.

    Args:
        attempt: Takes a step, the first and the last step of the pruning, and the sparsities there;
            returns the sparsity at the step.
    """
    numbers = [
        (150, 100, 200, 0.0, 0.8),
        (100, 100, 200, 0.2, 0.8),
        (200, 100, 200, 0.2, 0.8),
        (300, 0, 400, 0.5, 0.9),
        (40, 100, 200, 0.2, 0.8),
        (260, 100, 200, 0.2, 0.8),
    ]
    cases = [_cubic_case(*each) for each in numbers]
    return check_cases(attempt, cases, where='"All at once, or bit by bit?"')


def _cubic_case(step: int, begin: int, end: int, initial: float, final: float) -> Case:
    def at(gone: float, power: int = 3) -> float:
        return final + (initial - final) * (1 - gone) ** power

    free = (step - begin) / (end - begin)
    gone = min(max(free, 0.0), 1.0)
    rising = initial + (final - initial) * gone**3
    known: Known = [
        (at(gone, 1), "That is linear: as much in the last quarter as in the first."),
        (at(gone, 2), "The part that is left is cubed, not squared."),
        (rising, "That starts slowly and ends fast; the cubic schedule is the other way round."),
        (at(step / end), "The time counts from begin: (step - begin) / (end - begin)."),
        (final - final * (1 - gone) ** 3, "It starts at `initial`, not at 0."),
        (initial + final * (1 - (1 - gone) ** 3), "The way is final - initial, not final."),
        (at(free), "Before begin it is `initial`, after end `final`: hold the step between them."),
        (1 - at(gone), "That is the share that stays; sparsity is the share that is zero."),
    ]
    right = at(gone)
    given = f"step {step}, begin {begin}, end {end}, initial {initial}, final {final}"
    hint = "final + (initial - final) * (share of the time that is left) ** 3"
    return Case(given, (step, begin, end, initial, final), right, known, hint)


def check_proximal(attempt: Callable[[Tensor, float], Tensor]) -> Verdict:
    """Check `my_proximal(weight, threshold)`: towards zero, and stop there.

    Args:
        attempt: Takes a tensor and a threshold of 0 or more, returns a tensor of the same shape.
    """
    cases = [
        _proximal_case([0.5, 0.05, -0.3, 0.0], 0.1),
        _proximal_case([-2.0, 1.0, 0.75, -0.25], 1.0),
        _proximal_case([0.3, -0.3], 0.0),
        _proximal_case([[0.02, -0.4], [0.9, -0.01]], 0.2),
    ]
    where = '"Why does one of them stop at zero?"'
    verdict = check_cases(attempt, cases, where=where)
    if verdict.state != "correct":
        return verdict
    weight, threshold = (
        each.clone() if torch.is_tensor(each) else each for each in cases[0].arguments
    )
    try_out(attempt, weight, threshold)
    if same(weight, cases[0].arguments[0]):
        return verdict
    lines = [
        "The values are right, but the tensor that was handed in has changed.",
        "Return a new one.",
    ]
    return not_yet(lines, where)


def _proximal_case(values: list, threshold: float) -> Case:
    weight = torch.tensor(values, dtype=torch.float64)
    right = weight.sign() * (weight.abs() - threshold).clamp(min=0)
    known: Known = [
        (weight - threshold * weight.sign(), "A step along the sign jumps over zero: stop there."),
        (weight - threshold, "Negative weights move up: towards zero, not down."),
        ((weight - threshold).clamp(min=0), "Negative weights stay negative: give the sign back."),
        ((weight.abs() - threshold).clamp(min=0), "Give the sign back."),
        (
            torch.where(weight.abs() > threshold, weight, 0.0),
            "The small ones are right; the large ones move by the threshold too.",
        ),
        (weight.clamp(-threshold, threshold), "That keeps what should go: clamp the rest instead."),
        (weight * (1 - threshold), "That is weight decay: it shrinks, and never gives a zero."),
        (weight.sign() * (weight.abs() + threshold), "Away from zero: subtract from the size."),
    ]
    hint = "|weight| - threshold, not below 0, with the sign of the weight."
    given = f"weight {values} and threshold {threshold}"
    return Case(given, (weight, threshold), right, known, hint, _same_numbers)


def _same_numbers(result: Any, expected: Tensor) -> bool:
    """As `same`, and a numpy array will do."""
    is_array = hasattr(result, "__array__") and not isinstance(result, Tensor)
    return same(torch.as_tensor(result) if is_array else result, expected)


def check_keep(attempt: Callable[[torch.optim.Optimizer, Tensor, Tensor], None]) -> Verdict:
    """Check `my_keep(optimizer, weight, mask)`, called after each step of the optimizer.

    Args:
        attempt: Sets pruned weights, and what the optimizer remembers of them, to zero, in place.
    """
    where = '"How do you keep it at zero?"'
    if not callable(attempt):
        return no_function(attempt, where)
    for name, make in OPTIMIZERS.items():
        lines = keeps_zeros(attempt, make)
        if lines is ...:
            return not_attempted()
        if lines:
            return not_yet([f"After a step of {name}:", *lines], where)
    return correct("The zeros stay, the memory is clean, and nothing else has changed.")


def check_regrow(
    attempt: Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]],
) -> Verdict:
    """Check `my_regrow(mask, weight, gradient, count)`: one exchange of weights, as in RigL.

    Args:
        attempt: Takes mask, weight and gradient of one shape and how many weights to exchange;
            returns the new mask and the new weight.
    """
    where = '"Can weights grow back on purpose?"'
    stays, again = [0.9, -0.05, 0.1, -0.6, 0.0, 0.0], [0.1, -0.2, 0.1, 0.3, -0.7, 0.15]
    cases = [
        _regrow_case(
            [1, 1, 1, 1, 0, 0], [0.9, -0.05, 0.1, -0.6, 0, 0], [0.1, 0.2, 0.1, 3, -7, 5], 2
        ),
        _regrow_case([1, 1, 1, 1, 0, 0], stays, again, 2),
        _regrow_case(
            [[0, 1], [1, 0], [1, 1]], [[0, 5], [-4, 0], [0.3, -2]], [[-9, 1], [2, 8], [3, 4]], 1
        ),
        _regrow_case([0, 1, 1, 1], [0, -3, 2, 1], [4, 1, -2, 3], 0),
    ]
    verdict = check_cases(attempt, cases, where=where)
    if verdict.state != "correct":
        return verdict
    handed = copy.deepcopy(cases[0].arguments)
    try_out(attempt, *handed)
    if same(handed, cases[0].arguments):
        return verdict
    return not_yet(["The results are right, but a tensor that was handed in has changed."], where)


def _regrow_case(there: list, values: list, slopes: list, count: int) -> Case:
    mask = torch.tensor(there).bool()
    weight = torch.tensor(values, dtype=torch.float64)
    gradient = torch.tensor(slopes, dtype=torch.float64)
    never = torch.tensor(-torch.inf, dtype=torch.float64)

    def without(mask: Tensor, scores: Tensor) -> Tensor:
        left = mask.clone().flatten()
        left[scores.flatten().argsort(stable=True)[:count]] = False
        return left.view(mask.shape)

    def with_more(mask: Tensor, scores: Tensor) -> Tensor:
        more = mask.clone().flatten()
        more[scores.flatten().argsort(descending=True, stable=True)[:count]] = True
        return more.view(mask.shape)

    def exchanged(left: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return with_more(left, torch.where(left, never, wanted)), weight * left

    sizes = torch.where(mask, weight.abs(), -never)
    left, wanted = without(mask, sizes), gradient.abs()
    right = exchanged(left, wanted)
    signed = without(mask, torch.where(mask, weight, -never))
    largest = without(mask, torch.where(mask, -weight.abs(), -never))
    known: Known = [
        ((right[0], weight), "What grows starts at zero, also where a weight was dropped before."),
        ((right[0], weight * right[0]), "One is dropped and grows again: it starts at zero too."),
        ((right[0], torch.where(right[0] & ~left, gradient, weight * left)), "New weights are 0."),
        (
            exchanged(left, gradient),
            "A steep way down is wanted as well: the size of the gradient.",
        ),
        (exchanged(left, -gradient), "Grow where the size of the gradient is largest."),
        (exchanged(left, -wanted), "That grows where the gradient is smallest."),
        (exchanged(signed, wanted), "A weight of -2 is not small: drop by absolute value."),
        (exchanged(largest, wanted), "The smallest weights are dropped."),
        (
            (with_more(left, wanted), weight * left),
            "What is there cannot grow: then fewer weights come than go.",
        ),
        (
            exchanged(without(mask, weight.abs()), wanted),
            "Weights that are not there are no smallest weights: drop out of those in the mask.",
        ),
        (
            (
                with_more(left, torch.where(mask, never, wanted)),
                weight * left,
            ),
            "What is dropped may grow again, if its gradient is large enough.",
        ),
        ((left, weight * left), "That drops only: as many weights grow."),
        (right[0], "Return two tensors: the new mask and the new weight."),
        (right[::-1], "The mask first, then the weight."),
    ]
    given = f"mask {there}, weight {values}, gradient {slopes} and count {count}"
    hint = "Drop the `count` smallest that are there, grow `count` where |gradient| is largest."
    return Case(given, (mask, weight, gradient, count), right, known, hint)
