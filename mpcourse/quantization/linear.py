"""A Linear layer whose weight is stored, and multiplied, as 8-bit integers."""

import torch
from torch import Tensor, nn

from mpcourse.quantization.affine import Quantized, choose_qparams, quantize
from mpcourse.quantization.product import int8_matmul

MOST_INPUTS = 2**16  # with a zero_point, int32 holds the sums of so many products


class QuantizedLinear(nn.Module):
    """A Linear layer for inference: int8 inputs times int8 weights, int32 sums.

    With inputs s_x (q_x - z_x) and weights s_w q_w, an output is s_x s_w (sum q_x q_w - z_x sum
    q_w) + bias. The sums of the weights are known beforehand, so all large products are integers.

    The inputs arrive as floats and are quantized on the way in: with the given scale and
    zero_point (static), or with those of each row's own range (dynamic). A row's answer never
    depends on the other rows; one with NaN or an infinity is NaN or infinite. There is no gradient.
    """

    def __init__(
        self,
        weight: Quantized,
        bias: Tensor | None = None,
        input_qparams: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        if weight.integers.shape[1] > MOST_INPUTS:
            raise ValueError(
                f"a layer has at most {MOST_INPUTS:,} inputs, or its int32 sums could overflow; "
                f"got {weight.integers.shape[1]:,}"
            )
        if weight.zero_point.any():
            raise ValueError("the weight is quantized symmetrically: its zero_point is 0")
        scale = weight.scale.expand(weight.integers.shape[0]).clone()
        self.register_buffer("weight", weight.integers)
        self.register_buffer("weight_scale", scale)
        self.register_buffer("weight_sums", weight.integers.sum(1, dtype=torch.int32))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        static = (None, None) if input_qparams is None else input_qparams
        self.register_buffer("input_scale", static[0])
        self.register_buffer("input_zero_point", static[1])

    def forward(self, rows: Tensor) -> Tensor:
        """Take rows of shape (..., in) to (..., out), in the floats that they came in."""
        if not rows.is_floating_point():
            raise TypeError(f"rows are floats, as for nn.Linear; got {rows.dtype}")
        flat = rows.detach().float().reshape(-1, rows.shape[-1])
        scale, zero_point = self.input_qparams(flat)
        integers = quantize(flat, scale, zero_point)
        sums = int8_matmul(integers, self.weight.t()) - zero_point * self.weight_sums
        outputs = sums * (scale * self.weight_scale.float())  # a product too small for float16
        if self.input_scale is not None:  # a fixed range knows nothing of NaN and infinities
            outputs = outputs + (flat * 0).sum(1, keepdim=True)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.reshape((*rows.shape[:-1], len(self.weight))).to(rows.dtype)

    def input_qparams(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The scale and zero_point of rows (N, in): of shape (), or (N, 1) when dynamic."""
        if self.input_scale is not None:
            return self.input_scale.float(), self.input_zero_point
        low, high = rows.aminmax(dim=1, keepdim=True)
        return choose_qparams(low, high)

    def extra_repr(self) -> str:
        """Sizes and kind, as `print(model)` shows them."""
        outputs, inputs = self.weight.shape
        kind = "dynamic" if self.input_scale is None else "static"
        return f"in_features={inputs}, out_features={outputs}, inputs={kind}"
