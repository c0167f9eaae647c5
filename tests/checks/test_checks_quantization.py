"""The checks accept right answers however they are written and explain wrong ones."""

import math

import pytest
import torch
from solutions import quantization as solutions

from mpcourse.checks import check_fake, check_int8_linear, check_qparams, check_rows
from mpcourse.quantization import (
    choose_qparams,
    fake_quantize,
    int8_matmul,
    quantize_tensor,
    round_straight_through,
)


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_qparams(lambda low, high: ...).state == "not attempted"
    assert check_fake(lambda values, scale, largest: ...).state == "not attempted"
    assert check_rows(lambda weight: ...).state == "not attempted"
    assert check_int8_linear(lambda *arguments: ...).state == "not attempted"
    assert check_fake(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_qparams(solutions.my_qparams).state == "correct"
    assert check_fake(solutions.my_fake).state == "correct"
    assert check_rows(solutions.my_rows).state == "correct"
    assert check_int8_linear(solutions.my_int8_linear).state == "correct"


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


def rows_of_the_course(weight):
    quantized = quantize_tensor(weight, axis=0)
    return [quantized.integers, quantized.scale]


def linear_by_meaning(q_x, s_x, z_x, q_w, s_w, bias):
    return (s_x * (q_x.double() - z_x)) @ (s_w[:, None] * q_w.double()).t() + bias


def linear_by_the_kernel(q_x, s_x, z_x, q_w, s_w, bias):
    sums = int8_matmul(q_x, q_w.t().contiguous())
    return s_x * s_w * (sums - z_x * q_w.long().sum(1)) + bias


def fake_of_the_page(values, scale, largest):
    return round_straight_through(values / scale).clamp(-largest, largest) * scale


def test_other_right_answers_are_correct():
    assert check_qparams(qparams_by_tensors).state == "correct"
    assert check_qparams(lambda low, high: list(solutions.my_qparams(low, high))).state == "correct"
    by_hand = (ByHand.apply, fake_by_where, fake_clamped_first)
    for attempt in (*by_hand, fake_of_torch, fake_of_the_course, fake_of_the_page):
        assert check_fake(attempt).state == "correct"
    assert check_rows(rows_of_the_course).state == "correct"
    for attempt in (linear_by_meaning, linear_by_the_kernel):
        assert check_int8_linear(attempt).state == "correct"


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


def rounded_down(low, high):
    scale, _ = solutions.my_qparams(low, high)
    return scale, math.floor(-128 - min(low, 0.0) / scale)


def equal_ends_first(low, high):
    return (1, -128) if low == high else solutions.my_qparams(low, high)


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
        (rounded_down, "That rounds down"),
        (equal_ends_first, "0 has to be in the range: widen it first"),
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


def one_integer_more(values, scale, largest):
    steps = values / scale
    return (steps + (steps.round() - steps).detach()).clamp(-largest - 1, largest) * scale


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
        (lambda v, s, n: solutions.my_fake(v.clamp(-n, n), s, 1000), "not the values"),
        (one_integer_more, "not one below it"),
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


def rounded_rows(weight, scales):
    return (weight / scales[:, None]).round().to(torch.int8), scales


def cut_off_rows(weight):
    _, scales = solutions.my_rows(weight)
    return (weight / scales[:, None]).to(torch.int8), scales


def one_scale(weight):
    scale = weight.abs().max() / 127
    return (weight / scale).round().to(torch.int8), scale


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (one_scale, "one scale for the whole weight"),
        (lambda w: (one_scale(w)[0], one_scale(w)[1].expand(len(w))), "All rows have the scale"),
        (cut_off_rows, "round first"),
        (lambda w: (solutions.my_rows(w)[0].float(), solutions.my_rows(w)[1]), "floats still"),
        (lambda w: (w / solutions.my_rows(w)[1][:, None], solutions.my_rows(w)[1]), "round, then"),
        (lambda w: solutions.my_rows(w)[::-1], "in this order"),
        (lambda w: (solutions.my_rows(w)[0], solutions.my_rows(w)[1][:, None]), "(out, 1)"),
        (lambda w: (solutions.my_rows(w)[0], w.abs().amax(1)), "the size of a step"),
        (lambda w: rounded_rows(w, w.amax(1) / 127), "without its sign"),
        (lambda w: rounded_rows(w, w.abs().amax(1) / 127), "A row of zeros"),
        (lambda w: (w / w.abs().amax(0) * 127, w.abs().amax(0) / 127), "amax(1)"),
        (lambda w: (*one_scale(w / w.abs().amax(0))[:1], w.abs().amax(0) / 127), "the columns"),
        (lambda w: (solutions.my_rows(w)[0], solutions.my_rows(w)[1].tolist()), "in a tensor"),
        (lambda w: None, "without return"),
        (3, "takes a function"),
    ],
)
def test_wrong_scales_of_rows_are_explained(attempt, words):
    assert words in said(check_rows(attempt))


def linear(product=None, weights=None, factor=None):
    """A layer with parts replaced: the product, what is subtracted, the scales."""

    def attempt(q_x, s_x, z_x, q_w, s_w, bias):
        sums = (product or (lambda x, w: x.int() @ w.int().t()))(q_x, q_w)
        taken = (weights or (lambda x, z, w: z * w.sum(1, dtype=torch.int32)))(q_x, z_x, q_w)
        return (sums - taken) * (factor or (lambda x, w: x * w))(s_x, s_w) + bias

    return attempt


def minus_in_int8(q_x, s_x, z_x, q_w, s_w, bias):
    return ((q_x - z_x).int() @ q_w.int().t()) * s_x * s_w + bias


def bias_scaled(q_x, s_x, z_x, q_w, s_w, bias):
    return (q_x.int() @ q_w.int().t() - z_x * q_w.sum(1) + bias) * s_x * s_w


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (linear(product=lambda x, w: x @ w.t()), "wrapped round in int8"),
        (minus_in_int8, "wrapped round in int8"),
        (linear(weights=lambda x, z, w: 0), "The zero point is missing"),
        (linear(weights=lambda x, z, w: -z * w.sum(1)), "The sign of the correction"),
        (linear(weights=lambda x, z, w: z), "z_x is subtracted once"),
        (linear(weights=lambda x, z, w: z * x.sum(1, keepdim=True)), "not that of the inputs"),
        (linear(weights=lambda x, z, w: w.sum(1)), "multiplied by z_x"),
        (linear(weights=lambda x, z, w: z * w.sum(1).to(torch.int8)), "sums of the weights have"),
        (linear(factor=lambda x, w: x), "s_w, are missing"),
        (linear(factor=lambda x, w: w), "s_x, is missing"),
        (linear(factor=lambda x, w: x * w[:, None]), "no [:, None]"),
        (linear(factor=lambda x, w: 1), "multiply by both scales"),
        (lambda *given: solutions.my_int8_linear(*given) - given[-1], "The bias is missing"),
        (bias_scaled, "The bias is in floats already"),
        (lambda *given: solutions.my_int8_linear(*given).t(), "(out, rows)"),
        (lambda *given: None, "without return"),
        (lambda *given: "y", "sums in 32 bits"),
        (lambda *given: list(solutions.my_int8_linear(*given)), "one tensor"),
        (3, "takes a function"),
    ],
)
def test_wrong_int8_layers_are_explained(attempt, words):
    assert words in said(check_int8_linear(attempt))
