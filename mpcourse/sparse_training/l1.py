"""L1 regularisation twice: its gradient gives small weights, its proximal step gives zeros.

The gradient of strength * |w| is strength * sign(w): a step along it jumps over zero and back. The
proximal step moves each weight the same distance towards zero, but stops there.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.pruning.layers import is_masked, parameter_of, prunable_layers
from mpcourse.pruning.masked import refuse_masked


def l1_penalty(model: nn.Module) -> Tensor:
    """The sum of |w| over the weights, to be added to the loss: `loss + strength * penalty`."""
    weights = []
    for layer in prunable_layers(model).values():
        weight = parameter_of(layer)
        weights.append(weight * layer.weight_mask if is_masked(layer) else weight)
    return torch.stack([weight.abs().sum().to(weights[0].device) for weight in weights]).sum()


def soft_threshold(weight: Tensor, threshold: float) -> Tensor:
    """Move every value towards zero by the threshold, and stop at zero.

    It is the w that makes (w - weight) ** 2 / 2 + threshold * |w| smallest.
    """
    if not threshold >= 0:
        raise ValueError(f"threshold is 0 or more; got {threshold!r}")
    return weight.sign() * (weight.abs() - threshold).clamp(min=0)


class ProximalL1:
    """L1 by proximal steps: `optimizer.register_step_post_hook(ProximalL1(model, 1e-4))`.

    After each step the weights are soft-thresholded by learning rate * strength. With a convex
    loss, full gradients and a rate that is small enough this is ISTA, which converges to the
    minimum of loss + strength * |w|. A net trained on mini-batches has none of the three: it gets
    zeros, and no promise which ones. With momentum or Adam the problem is another one, too.

    Args:
        model: Any module with Linear or convolution layers, without masks.
        strength: Weight of the L1 term in the loss, 0 or more.
    """

    def __init__(self, model: nn.Module, strength: float) -> None:
        if not strength >= 0:
            raise ValueError(f"strength is 0 or more; got {strength!r}")
        refuse_masked(model, "L1 by proximal steps")
        self.model, self.strength = model, strength

    @torch.no_grad()
    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After a step: threshold by the learning rate that the step had."""
        rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
        for layer in prunable_layers(self.model).values():
            if layer.weight in rates:  # tensors hash by identity
                threshold = float(rates[layer.weight]) * self.strength
                layer.weight.copy_(soft_threshold(layer.weight, threshold))
