"""The checks accept right answers however they are written and explain wrong ones."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from solutions import quantize_and_compile as solutions

from mpcourse.checks import check_fake, check_payback, check_qparams
from mpcourse.quantization import choose_qparams, fake_quantize, round_straight_through


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_qparams(lambda low, high: ...).state == "not attempted"
    assert check_fake(lambda values, scale, largest: ...).state == "not attempted"
    assert check_payback(lambda startup, eager, compiled: ...).state == "not attempted"
    assert check_fake(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_qparams(solutions.my_qparams).state == "correct"
    assert check_fake(solutions.my_fake).state == "correct"
    assert check_payback(solutions.my_payback).state == "correct"


# Other right answers


def qparams_by_tensors(low, high):
    return choose_qparams(torch.tensor(low), torch.tensor(high))


class ByHand(torch.autograd.Function):
    """The gradient, written by hand."""

    @staticmethod
    def forward(context, values, scale, largest):
        integers = (values / scale).round()
        context.save_for_backward(integers.abs() <= largest)
        return integers.clamp(-largest, largest) * scale

    @staticmethod
    def backward(context, gradient):
        [inside] = context.saved_tensors
        return gradient * inside, None, None


def fake_by_where(values, scale, largest):
    limit = largest * scale
    inside = values.clamp(-limit, limit)
    rounded = (values.detach() / scale).round().clamp(-largest, largest) * scale
    return inside + (rounded - inside).detach()


def fake_clamped_first(values, scale, largest):
    return round_straight_through((values / scale).clamp(-largest, largest)) * scale


def fake_of_torch(values, scale, largest):
    found = torch.fake_quantize_per_tensor_affine(values.float(), scale, 0, -largest, largest)
    return found.double()


def fake_of_the_course(values, scale, largest):
    bits = {127: 8, 3: 3, 7: 4, 1: 2}[largest]
    return fake_quantize(values, torch.tensor(scale), torch.tensor(0), bits=bits, symmetric=True)


def payback_by_counting(startup, eager, compiled):
    saved = Fraction(str(eager)) - Fraction(str(compiled))
    if saved <= 0:
        return None
    calls = 0
    while calls * saved < Fraction(str(startup)):
        calls += 1
    return calls


def payback_by_numpy(startup, eager, compiled):
    return None if compiled >= eager else np.ceil(startup / (eager - compiled))


def payback_by_ceil(startup, eager, compiled):
    return None if compiled >= eager else math.ceil(startup / (eager - compiled))


def fake_of_the_page(values, scale, largest):
    return round_straight_through(values / scale).clamp(-largest, largest) * scale


def test_other_right_answers_are_correct():
    assert check_qparams(qparams_by_tensors).state == "correct"
    assert check_qparams(lambda low, high: list(solutions.my_qparams(low, high))).state == "correct"
    by_hand = (ByHand.apply, fake_by_where, fake_clamped_first)
    for attempt in (*by_hand, fake_of_torch, fake_of_the_course, fake_of_the_page):
        assert check_fake(attempt).state == "correct"
    assert check_payback(payback_by_counting).state == "correct"
    assert check_payback(payback_by_ceil).state == "correct"
    assert check_payback(payback_by_numpy).state == "correct"


# Wrong answers


def wide(low, high):
    return min(low, 0.0), max(high, 0.0)


def by_levels(low, high):
    low, high = wide(low, high)
    scale = (high - low) / 256
    return scale, round(-128 - low / scale)


def one_off(low, high):
    scale, _ = solutions.my_qparams(low, high)
    return scale, round(-127 - min(low, 0.0) / scale)


def without_minus_128(low, high):
    low, high = wide(low, high)
    scale = (high - low) / 254
    return scale, round(-127 - low / scale)


def unsigned(low, high):
    scale, _ = solutions.my_qparams(low, high)
    return scale, round(-min(low, 0.0) / scale)


def wrong_sign(low, high):
    scale, _ = solutions.my_qparams(low, high)
    return scale, round(-128 + min(low, 0.0) / scale)


def zero_not_exact(low, high):
    scale, _ = solutions.my_qparams(low, high)
    return scale, -128 - min(low, 0.0) / scale


def not_widened(low, high):
    scale = (high - low) / 255 or 1.0
    return scale, round(-128 - low / scale)


def cut(low, high):
    scale, _ = solutions.my_qparams(low, high)
    return scale, int(-128 - min(low, 0.0) / scale)


def no_empty_range(low, high):
    low, high = wide(low, high)
    scale = (high - low) / 255
    return scale, round(-128 - low / scale)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (by_levels, "256 integers have 255 steps"),
        (one_off, "One off"),
        (without_minus_128, "-128 belongs to the integers"),
        (unsigned, "integers from 0 to 255"),
        (wrong_sign, "Sign: low has to become -128"),
        (zero_not_exact, "only then does one integer mean 0.0"),
        (not_widened, "no integer means 0.0: widen"),
        (cut, "int() cuts towards 0"),
        (lambda low, high: (max(-low, high) / 127, 0), "one side is wasted"),
        (lambda low, high: (max(-low, high) / 128, 0), "one side is wasted"),
        (lambda low, high: (high / 127, 0), "That clips"),
        (lambda low, high: solutions.my_qparams(low, high)[::-1], "in this order"),
        (no_empty_range, "ZeroDivisionError"),
        (
            lambda low, high: solutions.my_qparams(low, high) if high - low else (0.0, -128),
            "the scale is 1 (it must not be 0)",
        ),
        (
            lambda low, high: solutions.my_qparams(low, high) if high - low else (1, 0),
            "The scale is right. low is 0, so -128 means 0.0",
        ),
        (lambda low, high: None, "without return"),
        (3, "takes a function"),
    ],
)
def test_wrong_scales_and_zero_points_are_explained(attempt, words):
    assert words in said(check_qparams(attempt))


def plain(values, scale, largest):
    return (values / scale).round().clamp(-largest, largest) * scale


def passes_all(values, scale, largest):
    return values + (plain(values, scale, largest) - values).detach()


def not_clipped(values, scale, largest):
    steps = values / scale
    return (steps + (steps.round() - steps).detach()) * scale


def fake_at_eight_bits(values, scale, largest):
    return fake_quantize(values, torch.tensor(scale), torch.tensor(0), symmetric=True)


def integers_only(values, scale, largest):
    return solutions.my_fake(values, scale, largest) / scale


def scaled_gradient(values, scale, largest):
    steps = values + (values / scale).round().detach() - values.detach()
    return steps.clamp(-largest, largest) * scale


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (plain, "that of a staircase"),
        (lambda v, s, n: plain(v.detach(), s, n), "no gradient comes through"),
        (passes_all, "leave clamp outside"),
        (not_clipped, "Nothing is clipped here, where largest is 3"),
        (fake_at_eight_bits, "in other cases it is another"),
        (lambda v, s, n: v.clamp(-n * s, n * s), "Nothing is rounded"),
        (lambda v, s, n: v, "Nothing is rounded"),
        (integers_only, "multiply by the scale again"),
        (scaled_gradient, "must not leave the gradient"),
        (lambda v, s, n: None, "without return"),
        (lambda v, s, n: v.sum(), "Round straight through"),
        (lambda v, s, n: v.no_such_thing, "AttributeError"),
        (3, "takes a function"),
    ],
)
def test_wrong_roundings_are_explained(attempt, words):
    assert words in said(check_fake(attempt))


NO_FASTER = "A compiled call that takes as long never pays: return None."
SLOWER = "A slower compiled call never pays: return None."


def divided(startup, eager, compiled):
    return startup / (eager - compiled) if eager > compiled else None


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda s, e, c: math.ceil(s / e), "what does each one save?"),
        (lambda s, e, c: s / e, "what does each one save?"),
        (lambda s, e, c: math.ceil(s / c), "eager - compiled"),
        (lambda s, e, c: math.ceil(s / (c - e)), "not the other way round"),
        (lambda s, e, c: divided(s, e, c), "Calls come whole"),
        (lambda s, e, c: None if e <= c else math.floor(divided(s, e, c)), "round up"),
        (lambda s, e, c: None if e <= c else int(divided(s, e, c)) + 1, "comes out even"),
        (lambda s, e, c: None if e <= c else round(divided(s, e, c) - 0.01), "ound up"),
        (lambda s, e, c: math.ceil(s / (e - c)), "ZeroDivisionError"),
        (lambda s, e, c: math.ceil(divided(s, e, c) or math.ceil(s / (e - c or 1))), NO_FASTER),
        (lambda s, e, c: solutions.my_payback(s, e, c) or math.inf, NO_FASTER),
        (lambda s, e, c: solutions.my_payback(s, e, c) or 0, NO_FASTER),
        (lambda s, e, c: None if e == c else math.ceil(s / (e - c)), SLOWER),
        (lambda s, e, c: None if e == c else math.ceil(s / abs(e - c)), SLOWER),
        (
            lambda s, e, c: None if e == c else solutions.my_payback(s, e, c) or -1,
            SLOWER,
        ),
        (lambda s, e, c: "never", "solve for calls"),
        (3, "takes a function"),
    ],
)
def test_wrong_paybacks_are_explained(attempt, words):
    assert words in said(check_payback(attempt))


@pytest.mark.parametrize("startup", [10.0, 0.25, 3.0])
def test_the_solution_has_paid_back_at_its_call_and_not_before(startup):
    calls = solutions.my_payback(startup, 0.75, 0.5)
    assert startup + calls * 0.5 <= calls * 0.75
    assert startup + (calls - 1) * 0.5 > (calls - 1) * 0.75
