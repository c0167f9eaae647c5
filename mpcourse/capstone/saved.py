"""What a stage saves for its backward: all, 8-bit codes of it, or its inputs alone.

Page `capstone`.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

SAVED = ("all", "int8", "recompute")
LEVELS = 255  # steps between the least and the greatest number of a tensor


class SavedInInt8(nn.Sequential):
    """Blocks whose forward saves 8-bit codes of its activations; the backward reads those.

    The forward is the blocks' own; gradients are off by the rounding. Places of maxima, whole
    numbers, are saved in 16 bits and stay what they are.

    Attributes:
        packed_bytes: What the last forward has saved.
    """

    packed_bytes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the blocks; what autograd saves meanwhile goes through `pack`."""
        weights = {parameter.data_ptr() for parameter in self.parameters()}
        newest: list[Any] = [None, None]  # a ReLU and the layer behind it save the same tensor
        self.packed_bytes = 0

        def pack(tensor: Tensor) -> Any:
            if tensor.data_ptr() in weights:
                return tensor
            if newest[0] is None or newest[0].data_ptr() != tensor.data_ptr():
                newest[:] = tensor.detach(), packed(tensor)
                self.packed_bytes += newest[1][0].nbytes
            return newest[1]

        with saved_tensors_hooks(pack, unpacked):
            return super().forward(inputs)


def packed(tensor: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """A tensor's codes, the step between two of them, and what code 0 stands for."""
    if not tensor.is_floating_point():
        return tensor.short(), None, None
    low, high = tensor.detach().aminmax()
    scale = (high - low).clamp(min=1e-12) / LEVELS
    return ((tensor.detach() - low) / scale).round_().to(torch.uint8), scale, low


def unpacked(kept: Any) -> Tensor:
    """The tensor that the codes stand for; one that was not packed as it is."""
    if isinstance(kept, Tensor):
        return kept
    codes, scale, low = kept
    return codes.long() if scale is None else codes * scale + low


def with_saved(stage: nn.Sequential, how: str) -> nn.Sequential:
    """The stage, of the same blocks, that saves its activations so."""
    return SavedInInt8(OrderedDict(stage.named_children())) if how == "int8" else stage
