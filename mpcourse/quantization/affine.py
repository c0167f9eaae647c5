"""Affine quantization: a float is scale * (integer - zero_point), the integer has 8 bits or fewer.

One scale and zero_point hold for a whole tensor (per tensor), or one of each for every index along
an axis (per channel). Source: Jacob et al., 2017, arXiv:1712.05877.
"""

from typing import NamedTuple

import torch
from torch import Tensor

BITS = range(2, 9)  # what fits into int8 and has a positive value


class Quantized(NamedTuple):
    """A tensor as integers, with what they mean."""

    integers: Tensor  # int8, of the shape of the tensor
    scale: Tensor  # float32, of shape () or one per index along the axis: the size of a step
    zero_point: Tensor  # int32, of the shape of scale: the integer that means 0.0
    axis: int | None  # that scale and zero_point run along; None: one for the whole tensor

    def dequantize(self) -> Tensor:
        """The floats that the integers mean."""
        return dequantize(self.integers, self.scale, self.zero_point, axis=self.axis)


def integer_range(bits: int = 8, *, symmetric: bool = False) -> tuple[int, int]:
    """The smallest and the largest integer of 2 to 8 bits; symmetric leaves the smallest out."""
    if isinstance(bits, bool) or bits not in BITS:
        raise ValueError(f"bits is 2 to 8, so that the integers fit into int8; got {bits!r}")
    largest = 2 ** (bits - 1) - 1
    return -largest - (not symmetric), largest


def range_of(values: Tensor, *, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value, float32, of a tensor or of each index along an axis.

    Raises:
        ValueError: No values, NaN or infinities among them, no such axis.
    """
    values = values.detach().float()
    if not values.numel():
        raise ValueError(
            f"a tensor of shape {tuple(values.shape)} has no values to take a range of"
        )
    if not values.isfinite().all():
        raise ValueError(f"{int((~values.isfinite()).sum())} values are NaN or infinite: no range")
    rows = values.reshape(1, -1) if axis is None else values.movedim(_checked(axis, values), 0)
    low, high = rows.flatten(1).aminmax(dim=1) if rows.dim() > 1 else (rows, rows)
    return (low[0], high[0]) if axis is None else (low, high)


def choose_qparams(
    low: Tensor, high: Tensor, *, bits: int = 8, symmetric: bool = False
) -> tuple[Tensor, Tensor]:
    """The scale and the zero_point that spread all integers over the range from low to high.

    The range is widened to hold 0, which one integer means exactly: zeros are common (ReLU,
    padding, pruned weights) and must not become something else.

    Args:
        low: The smallest value, float32, of any shape.
        high: The largest value, of the same shape.
        bits: 2 to 8.
        symmetric: The range is from -x to x, and the zero_point is 0.

    Returns:
        scale, float32 and positive, and zero_point, int32; both of the shape of low.
    """
    smallest, largest = integer_range(bits, symmetric=symmetric)
    low, high = low.clamp(max=0), high.clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    steps = largest - smallest
    scale = high / steps - low / steps  # high - low might overflow
    scale = torch.where(scale < torch.finfo(scale.dtype).tiny, 1.0, scale)  # all values are zero
    if symmetric:
        return scale, torch.zeros_like(scale, dtype=torch.int32)
    return scale, (smallest - low / scale).round().int()


def quantize(
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    *,
    axis: int | None = None,
    bits: int = 8,
    symmetric: bool = False,
) -> Tensor:
    """The nearest integers, as int8; values beyond the range become its ends.

    Args:
        values: Floats of any shape; none is NaN.
        scale: float32, of shape () or (values.shape[axis],), or of one that broadcasts to values.
        zero_point: int32, of the same shape.
        axis: The dimension that they run along.
        bits: 2 to 8.
        symmetric: Leave the smallest integer out.

    Raises:
        ValueError: Other bits, no such axis, not one scale for each of its indices.
    """
    smallest, largest = integer_range(bits, symmetric=symmetric)
    scale, zero_point = (_along(axis, each, values) for each in (scale, zero_point))
    integers = (values.float() / scale).round() + zero_point
    return integers.clamp(smallest, largest).to(torch.int8)


def dequantize(
    integers: Tensor, scale: Tensor, zero_point: Tensor, *, axis: int | None = None
) -> Tensor:
    """The floats that integers mean, float32; the arguments are those of `quantize`."""
    scale, zero_point = (_along(axis, each, integers) for each in (scale, zero_point))
    return (integers.int() - zero_point) * scale


def quantize_tensor(values: Tensor, *, axis: int | None = None, bits: int = 8) -> Quantized:
    """Quantize a tensor over its own range, symmetrically, as is usual for weights.

    Args:
        values: Floats, for example a weight of shape (out, in).
        axis: 0 for one scale per output channel; `None` for one scale.
        bits: 2 to 8.
    """
    options = {"bits": bits, "symmetric": True}
    qparams = choose_qparams(*range_of(values, axis=axis), **options)
    integers = quantize(values.detach(), *qparams, axis=axis, **options)
    return Quantized(integers, *qparams, axis)


def _along(axis: int | None, parameter: Tensor, values: Tensor) -> Tensor:
    """Shape a scale or zero_point so that it broadcasts along one dimension of the values."""
    if axis is None:
        return parameter
    axis = _checked(axis, values)
    if parameter.shape != values.shape[axis : axis + 1]:
        raise ValueError(
            f"axis {axis} has {values.shape[axis]} indices: scale and zero_point have the shape "
            f"({values.shape[axis]},); got {tuple(parameter.shape)}"
        )
    return parameter.reshape([-1 if d == axis else 1 for d in range(values.dim())])


def _checked(axis: int, values: Tensor) -> int:
    if not -values.dim() <= axis < values.dim():
        raise ValueError(f"axis {axis}, but the tensor has {values.dim()} dimensions")
    return axis % values.dim()
