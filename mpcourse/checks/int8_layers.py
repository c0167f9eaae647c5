"""Checks: a scale for each row of a weight, a layer that multiplies in int8.

Page `quantization`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpcourse.checks.verdict import Case, Verdict, check_cases, same

LARGEST = 127


def check_rows(attempt: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Verdict:
    """Check `my_rows(weight)`: int8 with a scale for each row.

    Args:
        attempt: Takes floats (out, in), returns int8 of that shape and scales (out,): the largest
            of each row without its sign over 127, and 1 for a row of zeros.
    """
    weights = [
        [[1.0, -0.5], [0.02, 0.04]],
        [[-3.0, 1.0, 0.7], [0.1, 0.2, -0.9]],
        [[50.0, 0.3, -0.2], [0.4, -0.33, 0.01], [1.0, 0.77, 0.5], [-0.6, 0.1, 0.25]],
        [[0.0, 0.0], [0.5, -0.2]],
    ]
    cases = [_rows_case(torch.tensor(each)) for each in weights]
    return check_cases(attempt, cases, where='"One large weight: whom does it hurt?"')


def _rows_case(weight: Tensor) -> Case:
    largest = weight.abs().amax(1)
    scales = torch.where(largest > 0, largest / LARGEST, 1.0)
    steps = weight / scales[:, None]
    right = steps.round().to(torch.int8), scales
    whole = weight.abs().max() / LARGEST
    signed, columns = weight.amax(1) / LARGEST, weight.abs().amax(0) / LARGEST
    by_128 = torch.where(largest > 0, largest / 128, 1.0)
    known = [
        (right[::-1], "Return (integers, scales), in this order."),
        (
            ((weight / whole).round().to(torch.int8), whole),
            "That is one scale for the whole weight: take the largest of each row.",
        ),
        (
            ((weight / whole).round().to(torch.int8), whole.expand(len(weight))),
            "All rows have the scale of the whole weight: take the largest of each row.",
        ),
        (
            ((weight / columns).round().to(torch.int8), columns),
            "Those are the columns; a row makes an output: amax(1), and divide by scales[:, None].",
        ),
        ((right[0], scales.tolist()), "The scales are right: return them in a tensor."),
        (
            (steps.to(torch.int8), scales),
            "int8 cuts off towards 0: round first. Half a step, not a whole one.",
        ),
        ((steps.round(), scales), "The integers are floats still: .to(torch.int8)."),
        ((steps, scales), "The integers are floats still: round, then .to(torch.int8)."),
        (
            (right[0], scales[:, None]),
            "The scales have the shape (out, 1); (out,) is asked for: divide by scales[:, None].",
        ),
        ((right[0], largest), "The scale is the size of a step: the largest of the row over 127."),
        (
            ((weight / by_128[:, None]).round().clamp(-128, 127).to(torch.int8), by_128),
            "The integers end at 127: the largest of the row over 127, not over 128.",
        ),
    ]
    hint = "scales = weight.abs().amax(1) / 127; integers = round(weight / scales[:, None])."
    if (largest > 0).all():
        integers = (weight / signed[:, None]).round().to(torch.int8)
        known.append(((integers, signed), "The largest without its sign: weight.abs() first."))
    else:
        hint = "A row of zeros has no largest weight: give it scale 1, and 0 / 1 is 0."
    given = f"a weight {weight.tolist()}: (integers, scales)"
    return Case(given, (weight,), right, known, hint, _same_with_types)


def _same_with_types(result: Any, expected: Any) -> bool:
    """Equal, and integers where integers are expected."""
    types = [getattr(each, "dtype", None) for each in result] if _is_pair(result) else []
    wanted = [getattr(each, "dtype", None) for each in expected] if _is_pair(expected) else []
    return types == wanted and same(tuple(result), tuple(expected))


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def check_int8_linear(attempt: Callable[..., Tensor]) -> Verdict:
    """Check `my_int8_linear(q_x, s_x, z_x, q_w, s_w, bias)`: an int8 layer, exact.

    Args:
        attempt: Takes int8 inputs (rows, in) with scale and zero point, int8 weights (out, in) with
            a scale for each row, and a bias (out,); returns floats (rows, out).
    """
    generator = torch.Generator().manual_seed(0)

    def integers(*shape: int) -> Tensor:
        return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)

    two = torch.tensor([0.5, 2.0])
    small_x = torch.tensor([[3, -1], [0, 5]], dtype=torch.int8)
    small_w = torch.tensor([[2, 1], [-1, 4]], dtype=torch.int8)
    numbers = [
        (small_x, 0.1, 0, small_w, two, torch.zeros(2)),
        (small_x, 0.1, 3, small_w, two, torch.tensor([1.0, -1.0])),
        (integers(3, 5), 0.02, -128, integers(2, 5), two, torch.tensor([0.5, -3.0])),
        (integers(4, 4), 0.5, 17, integers(4, 4), torch.tensor([0.1, 1, 2, 4.0]), torch.ones(4)),
        (integers(1, 300), 0.01, -128, integers(6, 300), torch.rand(6), torch.rand(6)),
    ]
    cases = [_linear_case(*each) for each in numbers]
    return check_cases(attempt, cases, where='"May two int8 matrices be multiplied?"')


def _linear_case(q_x: Tensor, s_x: float, z_x: int, q_w: Tensor, s_w: Tensor, bias: Tensor) -> Case:
    exact = q_x.double() @ q_w.double().t()
    of_weights = q_w.double().sum(1)
    sums = exact - z_x * of_weights
    scale = s_x * s_w.double()
    right = sums * scale + bias
    wrapped = (q_x @ q_w.t()).double()
    shifted = (q_x - torch.tensor(z_x, dtype=torch.int8)).double() @ q_w.double().t()
    known = [
        (
            (exact - z_x * q_w.sum(1).to(torch.int8)) * scale + bias,
            "The sums of the weights have wrapped round: add up with dtype=torch.int32.",
        ),
        (
            exact * scale + bias,
            "The zero point is missing: subtract z_x times the sum of each row of q_w.",
        ),
        (
            (wrapped - z_x * of_weights) * scale + bias,
            "The product has wrapped round in int8: sums need 32 bits.",
        ),
        (wrapped * scale + bias, "The product has wrapped round in int8: sums need 32 bits."),
        (shifted * scale + bias, "q_x - z_x has wrapped round in int8: go to 32 bits first."),
        (
            (exact + z_x * of_weights) * scale + bias,
            "The sign of the correction: subtract z_x times the sum of the weights.",
        ),
        (
            (exact - z_x) * scale + bias,
            "z_x is subtracted once; each of the `in` products needs it: times the sum of weights.",
        ),
        (
            (exact - z_x * q_x.double().sum(1, keepdim=True)) * scale + bias,
            "The correction has the sum of the weights, not that of the inputs.",
        ),
        (
            (exact - of_weights) * scale + bias,
            "The sum of the weights is to be multiplied by z_x.",
        ),
        (sums * scale, "The bias is missing."),
        ((sums + bias) * scale, "The bias is in floats already: add it after the scales."),
        (sums + bias, "These are the integers' sums: multiply by both scales."),
        (sums, "These are the integers' sums: multiply by both scales, add the bias."),
        (sums * s_x + bias, "The scales of the weights, s_w, are missing."),
        (sums * s_w + bias, "The scale of the inputs, s_x, is missing."),
        (right.t(), "That is (out, rows); (rows, out) is asked for."),
    ]
    if len(q_x) == len(q_w):
        message = "s_w belongs to the outputs, the columns of the result: no [:, None]."
        known.append((sums * s_x * s_w[:, None] + bias, message))
    given = f"q_x {tuple(q_x.shape)}, s_x {s_x}, z_x {z_x}, q_w {tuple(q_w.shape)}"
    if q_x.numel() <= 4:
        given = f"q_x {q_x.tolist()}, s_x {s_x}, z_x {z_x}, q_w {q_w.tolist()}"
        given += f", s_w {s_w.tolist()}, bias {bias.tolist()}"
    hint = "(q_x @ q_w.T - z_x * sums of the rows of q_w) * s_x * s_w + bias, sums in 32 bits."
    hint += " It is one tensor."
    return Case(given, (q_x, s_x, z_x, q_w, s_w, bias), right, known, hint, _close)


def _close(result: Any, expected: Any) -> bool:
    """Equal up to the rounding of float32: sums of some hundred products."""
    if not isinstance(result, Tensor) or result.shape != expected.shape:
        return False
    size = float(expected.abs().max())
    return torch.allclose(result.cpu().double(), expected.double(), rtol=1e-5, atol=1e-5 * size)
