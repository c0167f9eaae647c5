"""Criteria: how much each weight matters, as a score; the lowest scores are pruned first.

Scores are a dictionary from the name of a layer to a tensor of the shape of its weight (for
channels: one score per output channel). Only their order counts.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.pruning.layers import gradient_of, prunable_layers, weight_of

Scores = dict[str, Tensor]


def magnitude(model: nn.Module, layers: Iterable[str] | None = None) -> Scores:
    """|w|: a small weight changes the output little.

    Args:
        model: Any module with Linear or convolution layers, masked or not.
        layers: Names of the layers to score; all of them when `None`.

    Source: Han et al., 2015, arXiv:1506.02626.
    """
    return {name: weight_of(layer).abs() for name, layer in prunable_layers(model, layers).items()}


def random_scores(model: nn.Module) -> Scores:
    """Uniform numbers in [0, 1): the baseline that every other criterion has to beat.

    They are drawn on the CPU, so that a seed gives the same scores on every device.
    """
    weights = {name: weight_of(layer) for name, layer in prunable_layers(model).items()}
    return {name: torch.rand(w.shape).to(w.device) for name, w in weights.items()}


def gradient(model: nn.Module) -> Scores:
    """|dL/dw|: how fast the loss changes with the weight, wherever the weight is now.

    Raises:
        ValueError: There has been no backward.
    """
    return {n: gradient_of(n, layer).abs() for n, layer in prunable_layers(model).items()}


def snip(model: nn.Module) -> Scores:
    """|w dL/dw|: to first order, how much the loss changes when the weight becomes zero.

    The paper scores an untrained net on one batch and trains what is left; of a trained net, the
    score is the older first-order criterion.

    Raises:
        ValueError: There has been no backward.

    Source: SNIP, Lee et al., 2018, arXiv:1810.02340 (which divides by the sum: the same order).
    """
    found = prunable_layers(model)
    return {n: (weight_of(layer) * gradient_of(n, layer)).abs() for n, layer in found.items()}


class Movement:
    """The sum of -w dL/dw over the steps: positive where training moves a weight away from zero.

    A hook: `train(…, hooks=[movement])` calls it after each step, with the step's gradients and the
    new weights; the paper takes the weights from before (`optimizer.register_step_pre_hook`). Then
    take `movement.scores`. The paper fine-tunes a pre-trained net and learns the scores under the
    masks that they make; here they are only recorded while a net is trained from scratch.

    Source: Sanh et al., 2020, arXiv:2005.07683.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = prunable_layers(model)
        self.scores = {n: torch.zeros_like(weight_of(layer)) for n, layer in self._layers.items()}

    def __call__(self, *_: Any) -> None:
        """Add a step, from the weights and the gradients as they stand."""
        gradients = {name: gradient_of(name, layer) for name, layer in self._layers.items()}
        for name, layer in self._layers.items():
            self.scores[name] -= weight_of(layer) * gradients[name]


def channel_norms(model: nn.Module, layers: Iterable[str] | None = None) -> Scores:
    """The Euclidean norm of the weights that make each output channel (or output of a Linear).

    Args:
        model: Any module with Linear or convolution layers, masked or not.
        layers: Names of the layers to score; all of them when `None`.

    Returns:
        Scores of shape (channels, 1, ...), with as many dimensions as the weight.

    Source: Li et al., 2016, arXiv:1608.08710 (which takes the sum of absolute values).
    """
    weights = {name: weight_of(layer) for name, layer in prunable_layers(model, layers).items()}
    return {
        name: torch.linalg.vector_norm(w, dim=tuple(range(1, w.dim())), keepdim=True)
        for name, w in weights.items()
    }
