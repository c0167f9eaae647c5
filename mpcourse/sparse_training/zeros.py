"""Zeros of a model without masks: why they come back, and how to keep them.

Momentum remembers earlier gradients, and weight decay adds to them: a weight that was set to zero
by hand moves again with the next step, even when its gradient is zero. Masks of
`torch.nn.utils.prune` are safe from it (the optimizer changes `weight_orig`). Regrowth needs the
gradients of pruned weights, so it has no such masks, and zeros are restored after each step.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.pruning.layers import prunable_layers
from mpcourse.pruning.masked import checked_masks, refuse_masked


@torch.no_grad()
def zero_pruned(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set the pruned weights of a model without masks to zero, once, in place.

    Takes and refuses masks as `apply_masks` does, before anything has changed.
    """
    refuse_masked(model, "weights are set to zero")
    for layer, mask in checked_masks(model, masks).values():
        layer.weight.mul_(mask)


REMEMBER = (torch.optim.Rprop, torch.optim.Adafactor)  # step sizes; sums over rows of weights


class KeepMasks:
    """Keep pruned weights at zero: `optimizer.register_step_post_hook(KeepMasks(model, masks))`.

    At once and after each step the pruned weights of a model without masks are set to zero, and
    with them the optimizer's state of them (momentum, Adam's averages), so that a weight that is
    given back starts afresh. Takes and refuses masks as `apply_masks` does.

    Attributes:
        masks: Name of the layer -> bool tensor of the shape of its weight.
    """

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor]) -> None:
        zero_pruned(model, masks)
        self.model = model
        self.masks = {n: mask.clone() for n, (_, mask) in checked_masks(model, masks).items()}

    @torch.no_grad()
    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After a step: zero the pruned weights and their state."""
        if isinstance(optimizer, REMEMBER):
            kind = type(optimizer).__name__
            raise ValueError(f"{kind} cannot forget single weights: take SGD or one of the Adams")
        for name, layer in prunable_layers(self.model, self.masks).items():
            mask = self.masks[name]
            layer.weight.mul_(mask)
            for value in optimizer.state.get(layer.weight, {}).values():
                if isinstance(value, Tensor) and value.shape == mask.shape:
                    value.mul_(mask)
