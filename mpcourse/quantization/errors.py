"""What rounding to integers costs: the error of single values, and of all of them."""

from typing import NamedTuple

from torch import Tensor

from mpcourse.quantization.affine import quantize_tensor


class RoundingError(NamedTuple):
    """How far a quantized tensor is from the tensor.

    Attributes:
        largest: The largest error of one value.
        half_step: Half of the largest scale, which no value inside the range can exceed.
        relative: The root of the mean squared error, over that of the values.
    """

    largest: float
    half_step: float
    relative: float


def rounding_error(
    values: Tensor, *, axis: int | None = None, bits: int = 8, symmetric: bool = True
) -> RoundingError:
    """Quantize a tensor, dequantize it, and measure what has changed.

    Args:
        values: Floats, not all of them zero.
        axis: As for `quantize_tensor`.
        bits: 2 to 8.
        symmetric: As for `quantize_tensor`.

    Raises:
        ValueError: As for `quantize_tensor`, or all values are zero.
    """
    quantized = quantize_tensor(values, axis=axis, bits=bits, symmetric=symmetric)
    size = values.detach().double().norm()
    if not size:
        raise ValueError("all values are zero: there is nothing to round")
    error = quantized.dequantize().double() - values.detach().double()
    return RoundingError(
        largest=error.abs().max().item(),
        half_step=quantized.scale.max().item() / 2,
        relative=(error.norm() / size).item(),
    )


def with_outlier(values: Tensor, *, factor: float = 50.0) -> Tensor:
    """A copy of a weight in which one value is many times the largest one.

    Args:
        values: A weight of shape (out, ...).
        factor: How many times.

    Returns:
        The copy: the first value of row 0 has changed.
    """
    changed = values.detach().clone()
    changed[(0,) * changed.dim()] = factor * values.detach().abs().max()
    return changed
