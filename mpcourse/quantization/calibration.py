"""Observers: the range of each layer's inputs, found by running some batches."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.quantization.affine import range_of
from mpcourse.training.loop import evaluation_mode

Ranges = dict[str, tuple[float, float]]


class MinMaxObserver:
    """Remembers the smallest and the largest value that it was shown; a forward pre-hook."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf

    def observe(self, values: Tensor) -> None:
        """Widen the range to hold these values; no values, NaN and infinities are refused."""
        low, high = range_of(values)
        self.low, self.high = min(self.low, low.item()), max(self.high, high.item())

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Observe the first input of a module; so it can be registered as a hook."""
        self.observe(inputs[0])


def calibrate(model: nn.Module, batches: Iterable[Any]) -> Ranges:
    """Run some batches through a model and note the range of the inputs of each Linear layer.

    Use training data: the ranges are a part of the quantized model.

    Args:
        model: Any module with Linear layers; it is as before afterwards.
        batches: Inputs, on the model's device, or pairs whose first entry is the input.

    Returns:
        Name of the layer -> (smallest, largest) input.

    Raises:
        ValueError: No Linear layer, no batch, a layer that no batch has reached, NaN.
    """
    layers = linear_layers(model)
    observers = {name: MinMaxObserver() for name in layers}
    hooks = [layers[name].register_forward_pre_hook(seen) for name, seen in observers.items()]
    try:
        with torch.no_grad(), evaluation_mode(model):
            for batch in batches:
                model(batch[0] if isinstance(batch, tuple | list) else batch)
    finally:
        for hook in hooks:
            hook.remove()
    missed = [name for name, seen in observers.items() if seen.low > seen.high]
    if missed:
        raise ValueError(f"no batch has reached {', '.join(missed)}: calibration needs one")
    return {name: (seen.low, seen.high) for name, seen in observers.items()}


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The Linear layers of a model by name, the ones that quantization replaces.

    A layer that the model has in two places is listed once. Subclasses of other libraries are
    left alone: what owns them often reads their weight itself. A model without any is refused.
    """
    found = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear or getattr(layer, "is_fake_quantized", False)
    }
    if not found:
        raise ValueError(f"{type(model).__name__} has no Linear layer to quantize")
    return found
