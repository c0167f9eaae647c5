"""Quantization-aware training: the forward rounds as int8 will, the backward ignores it.

A rounded number is a staircase, with gradient 0 nearly everywhere. The straight-through estimator
takes the gradient of the line through the stairs instead: 1 inside the range, 0 where values are
clipped. Source: Bengio et al., 2013, arXiv:1308.3432; Jacob et al., 2017, arXiv:1712.05877.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpcourse.pruning import apply_masks, masks_of
from mpcourse.pruning.layers import replace_layers
from mpcourse.pruning.masked import permanent_copy
from mpcourse.quantization.affine import choose_qparams, integer_range
from mpcourse.quantization.calibration import linear_layers

NEW_RANGE = 0.1  # share of a new range in the moving average


def round_straight_through(values: Tensor) -> Tensor:
    """Round; the backward is the identity."""
    return values + (values.round() - values).detach()


def fake_quantize(
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    *,
    bits: int = 8,
    symmetric: bool = False,
) -> Tensor:
    """What `quantize` and `dequantize` give, computed in floats, with a straight-through gradient.

    The gradient is 1 where a value rounds to an integer of the range, its ends too, and 0 where it
    is clipped. `scale` and `zero_point` broadcast to the values.
    """
    smallest, largest = integer_range(bits, symmetric=symmetric)
    integers = round_straight_through(values / scale) + zero_point
    nearest = integers.detach().clamp(smallest, largest)
    # not `integers.clamp`: its gradient at the ends themselves is 1 in older torch and 0 in newer
    integers = torch.where(integers == nearest, integers, nearest)
    return (integers - zero_point) * scale


class FakeQuantizedLinear(nn.Linear):
    """A Linear layer that trains as what it will be after `to_int8`.

    Its weight, shared with the given layer, is rounded to `bits` per output channel in each
    forward; its inputs to 8 bits, over a moving average of the ranges seen in training.
    """

    is_fake_quantized = True

    def __init__(self, layer: nn.Linear, bits: int) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, "meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.bits, self.training = bits, layer.training
        # low > high: nothing seen yet
        self.register_buffer("low", torch.ones((), device=layer.weight.device))
        self.register_buffer("high", -torch.ones((), device=layer.weight.device))

    def forward(self, rows: Tensor) -> Tensor:
        """Take rows of shape (..., in) to (..., out)."""
        if self.training:
            self.observe(rows)
        options = {"bits": self.bits, "symmetric": True}
        floats = self.weight.float()  # rounded in float32, as int8 will be, whatever comes in
        limits = floats.detach().aminmax(dim=1, keepdim=True)
        weight = fake_quantize(floats, *choose_qparams(*limits, **options), **options)
        inputs = fake_quantize(rows.float(), *choose_qparams(*self.input_range()))
        return F.linear(inputs.to(rows.dtype), weight.to(self.weight.dtype), self.bias)

    def observe(self, rows: Tensor) -> None:
        """Move the range of the inputs towards that of these rows, if there are any."""
        if not rows.numel():
            return
        share = torch.where(self.low > self.high, 1.0, NEW_RANGE)  # the first is taken whole
        for limit, new in zip((self.low, self.high), rows.detach().aminmax(), strict=True):
            limit.lerp_(new.to(limit), share.to(limit))

    def input_range(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest input that int8 will represent, once training has begun."""
        if self.low > self.high:
            raise RuntimeError(
                "the range of this layer's inputs is unknown: "
                "show it a batch in training mode (model.train()) first"
            )
        return self.low.float(), self.high.float()


def prepare_qat(model: nn.Module, *, bits: int = 8) -> nn.Module:
    """A copy of a model whose Linear layers round in the forward; train it, then `to_int8`.

    Masks of a pruned model stay on, so that training leaves its zeros alone.

    Args:
        model: Any module with Linear layers.
        bits: Of the weights, 2 to 8.

    Raises:
        ValueError: No Linear layer, other bits.
    """
    integer_range(bits)
    masks = masks_of(model)
    plain = permanent_copy(model)
    layers = linear_layers(plain).items()
    ready = replace_layers(plain, {n: FakeQuantizedLinear(layer, bits) for n, layer in layers})
    if masks:
        apply_masks(ready, masks)
    return ready
