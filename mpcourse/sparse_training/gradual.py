"""Gradual pruning: a little more every few steps while training goes on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mpcourse.pruning.criteria import magnitude
from mpcourse.pruning.masked import apply_masks, masks_of, update_masks
from mpcourse.pruning.masks import global_masks, refuse_bad_share
from mpcourse.schedules.actions import check_count


def cubic_sparsity(
    step: int, *, final: float, begin: int = 0, end: int, initial: float = 0.0
) -> float:
    """The sparsity at a step: fast at first, when many weights are idle, then slower and slower.

    s(t) = final + (initial - final) * (1 - (t - begin) / (end - begin)) ** 3 between begin and end.

    Args:
        step: Steps of the optimizer that have been made, 0 or more.
        final: The sparsity from `end` on, 0 to 1.
        begin: Up to this step the sparsity is `initial`.
        end: A step after `begin`.
        initial: 0 to `final`.

    Raises:
        ValueError: A sparsity outside its range, or `end` not after `begin`.

    Source: Zhu and Gupta, 2017, arXiv:1710.01878.
    """
    refuse_bad_share(final, "final")
    refuse_bad_share(initial, "initial")
    if initial > final or not 0 <= begin < end:
        raise ValueError(
            "initial <= final and 0 <= begin < end are needed; "
            f"got initial {initial}, final {final}, begin {begin}, end {end}"
        )
    left = 1 - min(max(step - begin, 0), end - begin) / (end - begin)
    return final + (initial - final) * left**3


class GradualPruner:
    """Prune a model a little further every few steps: a hook after the optimizer's step.

    `optimizer.register_step_post_hook(pruner)`. What is pruned once stays pruned; at the end, call
    `make_permanent(model)`. Weights go by magnitude, with one threshold for all layers; the paper
    has one for each layer.

    Args:
        model: A model without masks; it gets masks that keep everything.
        sparsity: `sparsity(step)` for step 1, 2, ... gives the share pruned after that step:
            `functools.partial(cubic_sparsity, final=0.9, end=500)`.
        every: Steps between two changes of the masks, 1 or more.

    Attributes:
        step: Steps made so far.
        history: (step, sparsity) of each change.

    Raises:
        ValueError: `every` is less than 1, or the model has masks already.

    Source: Zhu and Gupta, 2017, arXiv:1710.01878.
    """

    def __init__(
        self, model: nn.Module, sparsity: Callable[[int], float], *, every: int = 1
    ) -> None:
        check_count("every", every)
        weights = magnitude(model)
        apply_masks(model, {n: torch.ones_like(w, dtype=torch.bool) for n, w in weights.items()})
        self.model, self.sparsity, self.every = model, sparsity, every
        self.step, self.history = 0, []

    def __call__(self, *_: Any) -> None:
        """After a step of the optimizer: prune further if it is time."""
        self.step += 1
        if self.step % self.every:
            return
        share = self.sparsity(self.step)
        masks = global_masks(magnitude(self.model), share, within=masks_of(self.model))
        update_masks(self.model, masks)
        self.history.append((self.step, share))
