"""A model's Linear layers become int8 layers."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mpcourse.pruning.layers import replace_layers
from mpcourse.pruning.masked import permanent_copy
from mpcourse.quantization.affine import choose_qparams, integer_range, quantize_tensor
from mpcourse.quantization.calibration import linear_layers
from mpcourse.quantization.linear import QuantizedLinear


def to_int8(
    model: nn.Module,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    *,
    bits: int = 8,
    per_channel: bool = True,
) -> nn.Module:
    """A copy of a model, without masks, whose Linear layers compute in int8.

    All else stays in floats. Pruned weights stay zero: the integer 0 means exactly 0.0.

    Args:
        model: Any module with Linear layers, masked or not, or one after `prepare_qat`.
        ranges: What `calibrate` returns, for a fixed range of each layer's inputs. When `None`,
            each row is quantized over its own range (dynamic); a model after `prepare_qat` has
            learnt its ranges and bits, and takes those.
        bits: Of the weights, 2 to 8; they take a byte each in any case.
        per_channel: One scale per output channel; one for the whole weight when False.

    Raises:
        ValueError: No Linear layer, ranges of other layers, other bits, weights or ranges that are
            NaN, a layer that somebody has put hooks on.
    """
    integer_range(bits)
    plain = permanent_copy(model)
    layers = linear_layers(plain)
    if ranges is not None and set(ranges) != set(layers):
        raise ValueError(f"ranges has {list(ranges)}, the Linear layers are {list(layers)}")
    axis = 0 if per_channel else None
    new = {}
    for name, layer in layers.items():
        own_bits, own_range = _own(layer, bits, None if ranges is None else ranges[name])
        weight = quantize_tensor(layer.weight, axis=axis, bits=own_bits)
        qparams = None if own_range is None else choose_qparams(*own_range)
        new[name] = QuantizedLinear(weight, layer.bias, qparams)
    return replace_layers(plain, new)


def _own(
    layer: nn.Linear, bits: int, limits: tuple[float, float] | None
) -> tuple[int, tuple[Tensor, Tensor] | None]:
    """The bits and the range of a layer: its own if it was trained with them."""
    if getattr(layer, "is_fake_quantized", False):
        bits, limits = layer.bits, layer.input_range()
    if limits is None:
        return bits, None
    low, high = (torch.tensor(float(limit), device=layer.weight.device) for limit in limits)
    if not (low <= high and low.isfinite() and high.isfinite()):
        raise ValueError(f"a range is two finite numbers, the smaller one first; got {limits}")
    return bits, (low, high)
