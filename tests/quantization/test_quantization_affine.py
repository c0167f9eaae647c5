"""Scale and zero_point: literal numbers, torch's own as the oracle, half a step at most."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcourse.quantization import (
    Quantized,
    choose_qparams,
    integer_range,
    quantize,
    quantize_tensor,
    range_of,
)

BOUND = 0.5001  # steps; the rest is float32


@pytest.mark.parametrize(
    ("low", "high", "options", "scale", "zero_point"),
    [
        (-1.0, 2.0, {}, 3 / 255, -43),
        (0.0, 2.55, {}, 0.01, -128),
        (2.0, 5.1, {}, 0.02, -128),  # the range is widened to 0
        (0.0, 0.0, {}, 1.0, -128),
        (-1.0, 0.5, {"symmetric": True}, 1 / 127, 0),
        (0.0, 0.0, {"symmetric": True}, 1.0, 0),
        (-3.0, 3.0, {"symmetric": True, "bits": 3}, 1.0, 0),
        (0.0, 15.0, {"bits": 4}, 1.0, -8),
    ],
)
def test_scale_and_zero_point_of_known_ranges(low, high, options, scale, zero_point):
    found = choose_qparams(torch.tensor(low), torch.tensor(high), **options)
    assert [each.dtype for each in found] == [torch.float32, torch.int32]
    assert [each.item() for each in found] == [pytest.approx(scale), zero_point]


def test_torch_s_observer_chooses_the_same_scale_and_zero_point():
    from torch.ao.quantization.observer import MinMaxObserver

    values = torch.randn(500) + 0.4
    theirs = MinMaxObserver(dtype=torch.qint8, qscheme=torch.per_tensor_affine)
    theirs(values)
    scale, zero_point = theirs.calculate_qparams()
    ours = choose_qparams(*range_of(values))
    assert (ours[0].item(), ours[1].item()) == (pytest.approx(scale.item()), zero_point.item())


def quantized_over_its_range(values: torch.Tensor, **options) -> Quantized:
    scale_and_zero_point = choose_qparams(*range_of(values), **options)
    integers = quantize(values, *scale_and_zero_point, **options)
    return Quantized(integers, *scale_and_zero_point, None)


FLOATS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@settings(max_examples=200, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=20), st.integers(2, 8), st.booleans())
def test_no_value_is_off_by_more_than_half_a_step_and_zero_is_exact(numbers, bits, symmetric):
    values = torch.tensor([*numbers, 0.0])
    quantized = quantized_over_its_range(values, bits=bits, symmetric=symmetric)
    if symmetric:
        assert torch.equal(quantized.integers, quantize_tensor(values, bits=bits).integers)
    error = (quantized.dequantize().double() - values.double()).abs()
    assert error.max() <= BOUND * quantized.scale.double()
    assert error[-1] == 0
    smallest, largest = integer_range(bits, symmetric=symmetric)
    assert smallest <= quantized.integers.min()
    assert quantized.integers.max() <= largest


def test_the_ends_of_the_float_range_survive():
    most = torch.finfo(torch.float32).max
    quantized = quantized_over_its_range(torch.tensor([-most, most, 0.0]))
    assert quantized.scale.isfinite()
    assert quantized.integers.tolist()[:2] == [-128, 127]
    tiny = quantize_tensor(torch.tensor([1e-42, 0.0]))
    assert tiny.dequantize().tolist() == [0.0, 0.0]


def test_per_channel_is_per_tensor_of_each_row():
    weight = torch.randn(5, 3, 2, 2) * torch.tensor([1.0, 10, 100, 0.1, 0]).view(5, 1, 1, 1)
    whole = quantize_tensor(weight, axis=0)
    assert whole.scale.shape == whole.zero_point.shape == (5,)
    for row, integers, scale in zip(weight, whole.integers, whole.scale, strict=True):
        alone = quantize_tensor(row)
        assert torch.equal(alone.integers, integers)
        assert alone.scale == scale
    last = quantize_tensor(weight.movedim(0, -1), axis=-1)
    assert torch.equal(last.integers.movedim(-1, 0), whole.integers)
    assert torch.equal(last.dequantize().movedim(-1, 0), whole.dequantize())


def test_vectors_scalars_and_half_precision_are_taken():
    assert quantize_tensor(torch.tensor([1.0, -2.0]), axis=0).integers.tolist() == [127, -127]
    assert quantize_tensor(torch.tensor(3.0)).integers.item() == 127
    half = quantize_tensor(torch.randn(4, 4, dtype=torch.float16))
    assert half.scale.dtype == torch.float32
    assert quantize_tensor(torch.randn(3, requires_grad=True)).dequantize().grad_fn is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize_tensor(torch.ones(2), bits=9), "bits is 2 to 8, .*; got 9"),
        (lambda: integer_range(True), "got True"),
        (lambda: quantize_tensor(torch.empty(0, 3)), r"shape \(0, 3\) has no values"),
        (lambda: quantize_tensor(torch.tensor([1.0, torch.nan])), "1 values are NaN or infinite"),
        (lambda: quantize_tensor(torch.ones(2, 2), axis=2), "axis 2, but the tensor has 2"),
        (
            lambda: quantize(torch.ones(3, 2), torch.ones(2), torch.zeros(2), axis=0),
            r"axis 0 has 3 indices: .* shape \(3,\); got \(2,\)",
        ),
    ],
)
def test_bad_input_is_named(call, message: str):
    with pytest.raises(ValueError, match=message):
        call()
