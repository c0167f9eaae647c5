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
Names = Iterable[str] | None


def magnitude(model: nn.Module, layers: Names = None) -> Scores:
    """|w|: a small weight changes the output little.

    Args:
        model: Any module with Linear or convolution layers, masked or not.
        layers: Names of the layers to score; all of them when `None`.

    Source: Han et al., 2015, arXiv:1506.02626.
    """
    return {name: weight_of(layer).abs() for name, layer in prunable_layers(model, layers).items()}


def random_scores(
    model: nn.Module, generator: torch.Generator | None = None, layers: Names = None
) -> Scores:
    """Uniform numbers in [0, 1): the baseline that every other criterion has to beat.

    Args:
        model: As for `magnitude`.
        generator: A CPU generator; torch's own when `None`. Drawn on the CPU, so that a seed gives
            the same scores on every device.
        layers: As for `magnitude`.
    """
    weights = {name: weight_of(layer) for name, layer in prunable_layers(model, layers).items()}
    return {
        name: torch.rand(w.shape, generator=generator).to(w.device) for name, w in weights.items()
    }


def gradient(model: nn.Module, layers: Names = None) -> Scores:
    """|dL/dw|: how fast the loss changes with the weight, wherever the weight is now.

    Args:
        model: As for `magnitude`, after `loss.backward()`.
        layers: As for `magnitude`.

    Raises:
        ValueError: There has been no backward.
    """
    found = prunable_layers(model, layers)
    return {name: gradient_of(name, layer).abs() for name, layer in found.items()}


def snip(model: nn.Module, layers: Names = None) -> Scores:
    """|w dL/dw|: to first order, how much the loss changes when the weight becomes zero.

    The paper takes it of an untrained net, from one batch, and trains what is left. The score does
    not know: of a trained net it is the older first-order criterion.

    Args:
        model: As for `magnitude`, after `loss.backward()`.
        layers: As for `magnitude`.

    Raises:
        ValueError: There has been no backward.

    Source: SNIP, Lee et al., 2018, arXiv:1810.02340 (which divides by the sum: the same order).
    """
    found = prunable_layers(model, layers)
    return {
        name: (weight_of(layer) * gradient_of(name, layer)).abs() for name, layer in found.items()
    }


class Movement:
    """The sum of -w dL/dw over the steps: positive where training moves a weight away from zero.

    Here it looks on while a net is trained from scratch. The paper fine-tunes a net that has been
    trained on other data, and learns the scores under the masks that they make.

    Use it as a hook of the optimizer, before each step:
    `optimizer.register_step_pre_hook(movement)`; then take `movement.scores`.

    Args:
        model: As for `magnitude`.
        layers: As for `magnitude`.

    Attributes:
        scores: Name of the layer -> score so far.

    Source: Sanh et al., 2020, arXiv:2005.07683.
    """

    def __init__(self, model: nn.Module, layers: Names = None) -> None:
        self._layers = prunable_layers(model, layers)
        self.scores = {n: torch.zeros_like(weight_of(layer)) for n, layer in self._layers.items()}

    def __call__(self, *_: Any) -> None:
        """Add the step that is about to be made, from the gradients as they stand."""
        gradients = {name: gradient_of(name, layer) for name, layer in self._layers.items()}
        for name, layer in self._layers.items():
            self.scores[name] -= weight_of(layer) * gradients[name]


def channel_norms(model: nn.Module, p: float = 2, layers: Names = None) -> Scores:
    """The p-norm of the weights that make each output channel (or each output of a Linear layer).

    Args:
        model: As for `magnitude`.
        p: 1 or more; 2 is the Euclidean norm.
        layers: As for `magnitude`.

    Returns:
        Scores of shape (channels, 1, ...), with as many dimensions as the weight.

    Source: Li et al., 2016, arXiv:1608.08710 (with p = 1).
    """
    if not p >= 1:
        raise ValueError(f"p is 1 or more; got {p!r}")
    weights = {name: weight_of(layer) for name, layer in prunable_layers(model, layers).items()}
    return {
        name: torch.linalg.vector_norm(w, p, dim=tuple(range(1, w.dim())), keepdim=True)
        for name, w in weights.items()
    }
