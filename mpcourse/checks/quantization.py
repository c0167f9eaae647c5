"""Checks: scale and zero point, rounding that learns."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpcourse.checks.verdict import Case, Verdict, check_cases

Known = list[tuple[Any, str]]
SMALLEST, LARGEST = -128, 127
STEPS = LARGEST - SMALLEST


def check_qparams(attempt: Callable[[float, float], tuple[float, int]]) -> Verdict:
    """Check `my_qparams(low, high)`: what spreads int8 over a range, with zero exact.

    Args:
        attempt: Takes the smallest and the largest value, returns (scale, zero_point) for the
            integers from -128 to 127; the range is widened to hold 0, and zero_point is the integer
            nearest to the one that makes low -128. For 0 and 0 it returns (1, -128).
    """
    ranges = [(-3.0, 1.0), (-0.7, 2.0), (-1.3, 4.0), (0.0, 2.55), (2.0, 5.1), (-5.1, -2.0)]
    ranges += [(0.0, 0.0), (2.0, 2.0)]
    cases = [_qparams_case(low, high) for low, high in ranges]
    return check_cases(attempt, cases, where='"Which integer means zero?"')


def _qparams_case(low: float, high: float) -> Case:
    wide_low, wide_high = min(low, 0.0), max(high, 0.0)
    span = wide_high - wide_low
    scale = span / STEPS or 1.0
    exact = SMALLEST - wide_low / scale
    right = (scale, round(exact))
    known: Known = [(right[::-1], "Return (scale, zero_point), in this order.")]
    if span and high == low:
        words = "The two ends are equal, but 0 has to be in the range: widen it first."
        known.append(((1.0, SMALLEST), words))
    if span:
        own = (high - low) / STEPS or 1.0
        size = max(-low, high)
        by_256, by_254 = span / 256, span / 254
        known += [
            (
                (by_256, round(SMALLEST - wide_low / by_256)),
                "256 integers have 255 steps between them.",
            ),
            (
                (by_254, round(-LARGEST - wide_low / by_254)),
                "-128 belongs to the integers, too: 255 steps.",
            ),
            ((scale, int(exact)), "int() cuts towards 0: round to the nearest integer."),
            ((scale, math.floor(exact)), "That rounds down: round to the nearest integer."),
            ((scale, round(-LARGEST - wide_low / scale)), "One off: low becomes -128, not -127."),
            ((scale, round(-wide_low / scale)), "That is for integers from 0 to 255."),
            (
                (scale, round(SMALLEST + wide_low / scale)),
                "Sign: low has to become -128, so low / scale + zero_point = -128.",
            ),
            ((scale, exact), "zero_point is an integer: only then does one integer mean 0.0."),
            (
                (own, round(SMALLEST - low / own)),
                "0.0 is outside that range, so no integer means 0.0: widen the range to hold it.",
            ),
            (
                (own, round(exact)),
                "The range has to be widened for the scale, too.",
            ),
            (
                (size / LARGEST, 0),
                "Symmetric: one side is wasted. This range has two ends: use both.",
            ),
            ((size / 128, 0), "Symmetric: one side is wasted. This range has two ends: use both."),
            ((high / LARGEST, 0), "That clips: all below -128 * scale becomes -128 * scale."),
            ((2 * size / STEPS, 0), "Symmetric: one side is wasted. Use both ends."),
        ]
    else:
        known += [
            (
                (1.0, zero),
                "The scale is right. low is 0, so -128 means 0.0: the zero_point is -128.",
            )
            for zero in (0, 127, 128, -127)
        ]
    hint = "scale = (high - low) / 255 and zero_point = round(-128 - low / scale), with 0 inside."
    if not span:
        hint = "Here the scale is 1 (it must not be 0), and -128, which means low, means 0.0."
    return Case(f"a range from {low} to {high}", (low, high), right, known, hint)


def check_fake(attempt: Callable[[Tensor, float, int], Tensor]) -> Verdict:
    """Check `my_fake(values, scale, largest)`: its values and its gradient.

    Args:
        attempt: Takes floats that need a gradient, a scale (a float, without a gradient) and the
            largest integer; returns the floats that the integers from -largest to largest mean.
            The gradient is 0 where a value rounds to an integer beyond these, and 1 where it rounds
            to one between them. Where it rounds to an end, either is right.
    """
    # none that rounds to an end: there, the gradient of clamp is 1 in older torch and 0 in newer
    cases = [
        _fake_case([0.1, -0.33], 0.25, 127),
        _fake_case([-0.9, -0.3, 0.1, 0.33, 0.6, 2.0], 0.25, 3),
        _fake_case([[-30.0, 4.0], [0.7, 12.3]], 2.0, 7),
        _fake_case([0.4, -1.9, 0.0], 1.0, 1),
    ]
    tried = _with_gradient(attempt) if callable(attempt) else attempt
    where = '"Can a net learn to live with three values?"'
    return check_cases(tried, cases, where=where)


def _with_gradient(attempt: Callable[..., Any]) -> Callable[..., Any]:
    """The attempt, followed by a backward: what comes out, and the gradient or None."""

    def run(values: Tensor, scale: float, largest: int, factors: Tensor) -> Any:
        values.requires_grad_()
        found = attempt(values, scale, largest)
        if not isinstance(found, Tensor):
            return found
        if not found.requires_grad or found.shape != factors.shape:
            return found.detach(), None
        (found * factors).sum().backward()
        return found.detach(), None if values.grad is None else values.grad / factors

    return run


def _fake_case(numbers: list, scale: float, largest: int) -> Case:
    values = torch.tensor(numbers, dtype=torch.float64)
    factors = torch.arange(2.0, 2.0 + values.numel(), dtype=torch.float64).view(values.shape)
    free = (values / scale).round()
    integers = free.clamp(-largest, largest)
    inside = (free.abs() <= largest).double()
    one_more = ((free >= -largest - 1) & (free <= largest)).double()
    too_low = free.clamp(-largest - 1, largest) * scale
    ones, right = torch.ones_like(values), (integers * scale, inside)
    clipped = values.clamp(-largest * scale, largest * scale)
    known: Known = [
        (
            (right[0], None),
            "The values are right, but no gradient comes through: detach only the difference.",
        ),
        (
            (right[0], torch.zeros_like(values)),
            "The values are right; the gradient is that of a staircase, 0: no weight would learn.",
        ),
        (
            (right[0], ones),
            "The values are right; a clipped value gets a gradient, too: leave clamp outside.",
        ),
        (
            (free * scale, ones),
            f"Nothing is clipped here, where largest is {largest} (in other cases it is another): "
            "clamp the integers, not the values, to -largest … largest.",
        ),
        ((too_low, one_more), "The smallest integer is -largest, not one below it."),
        ((too_low, inside), "The smallest integer is -largest, not one below it."),
        ((clipped, inside), "Nothing is rounded: the forward has to round."),
        ((values, ones), "Nothing is rounded: the forward has to round."),
        ((integers, inside / scale), "These are the integers: multiply by the scale again."),
        ((integers, inside), "These are the integers: multiply by the scale again."),
        (
            (right[0], inside * scale),
            "The values are right; dividing by the scale must not leave the gradient.",
        ),
        (
            (right[0], inside / scale),
            "The values are right; multiplying by the scale must not leave the gradient.",
        ),
    ]
    given = f"values {numbers}, scale {scale}, largest {largest}: (values, gradient)"
    hint = "Round straight through, then clamp, then multiply by the scale."
    return Case(given, (values, scale, largest, factors), right, known, hint)
