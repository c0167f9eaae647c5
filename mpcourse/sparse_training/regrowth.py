"""Regrowth: a sparse network that changes which weights it has while it trains (RigL).

Every few steps, in each layer, the smallest weights are dropped and as many are grown where the
gradient is largest. The number of weights never changes; the dense network is never trained.

Source: Evci et al., 2019, arXiv:1911.11134.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.pruning.layers import gradient_of, prunable_layers
from mpcourse.schedules.actions import check_count
from mpcourse.sparse_training.zeros import KeepMasks

FIRST_SHARE = 0.3  # of each layer's weights, dropped and grown at first: the paper's alpha


def _dropped(mask: Tensor, weight: Tensor, count: int) -> Tensor:
    """The mask without the `count` smallest of its weights."""
    if not 0 <= count <= int(mask.sum()):
        raise ValueError(f"count is 0 to {int(mask.sum())}, the weights there are; got {count}")
    _refuse_nan("weight", weight)
    left = mask.clone().flatten()
    sizes = weight.detach().abs().masked_fill(~mask, torch.inf).flatten()
    left[sizes.argsort(stable=True)[:count]] = False
    return left.view(mask.shape)


def _grown(mask: Tensor, growth: Tensor, count: int) -> Tensor:
    """The mask with `count` weights more, where `growth` is largest: |dL/dw| in RigL.

    What was dropped may grow again, if nothing else has a larger score.
    """
    _refuse_nan("growth", growth)
    more = mask.clone().flatten()
    wanted = growth.flatten().masked_fill(more, -torch.inf)  # existing weights cannot grow
    more[wanted.argsort(descending=True, stable=True)[:count]] = True
    return more.view(mask.shape)


def _refuse_nan(name: str, values: Tensor) -> None:
    if values.isnan().any():
        raise ValueError(f"{name} has NaN")


def cosine_share(step: int, end: int) -> float:
    """The share of the weights that is exchanged at a step: a cosine that falls to 0 at `end`."""
    return FIRST_SHARE / 2 * (1 + math.cos(math.pi * min(step, end) / end))


class Regrowth(KeepMasks):
    """Drop and grow every few steps, keep zeros in between: a hook after the optimizer's step.

    `optimizer.register_step_post_hook(Regrowth(model, masks, every=20, end=400))`. The gradients
    are those of the step just made; the model has no masks, so that pruned weights have one too.
    Every weight that grows starts at zero and with nothing remembered, also one that is dropped and
    grows again at once.

    Args:
        model: A model without masks; its pruned weights become zero at once.
        masks: Where to start, often at random: `layer_masks(random_scores(model), 0.9)`.
        every: Steps between two exchanges, 1 or more.
        end: From this step on nothing is exchanged.

    Attributes:
        masks: The masks now.
        step: Steps made so far.

    Raises:
        ValueError: As for `KeepMasks`, or a bad schedule. Nothing has changed.
    """

    def __init__(
        self, model: nn.Module, masks: Mapping[str, Tensor], *, every: int, end: int
    ) -> None:
        check_count("every", every)
        check_count("end", end)
        super().__init__(model, masks)
        self.every, self.end, self.step = every, end, 0

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After a step: zero what is pruned, and exchange weights if it is time."""
        super().__call__(optimizer)
        self.step += 1
        if self.step % self.every == 0 and self.step < self.end:
            self._exchange(optimizer)

    def _exchange(self, optimizer: torch.optim.Optimizer) -> None:
        layers = prunable_layers(self.model, self.masks)
        wanted = {name: gradient_of(name, layer).abs() for name, layer in layers.items()}
        share = cosine_share(self.step, self.end)
        counts = {name: int(share * int(mask.sum())) for name, mask in self.masks.items()}
        for name, layer in layers.items():
            self.masks[name] = _dropped(self.masks[name], layer.weight, counts[name])
        super().__call__(optimizer)  # before growing: a regrown weight starts at zero too
        for name, mask in self.masks.items():
            self.masks[name] = _grown(mask, wanted[name], counts[name])
