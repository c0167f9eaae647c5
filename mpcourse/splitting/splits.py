"""Cut a model into stages, and the small models that pages cut.

Pages `split_a_model` and `pipeline`.

A stage is a contiguous part of the model. The best cut makes the slowest stage as fast as possible,
because a pipeline moves at the pace of its slowest stage.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

from mpcourse.data_parallel.replicas import parallel_apply
from mpcourse.devices.devices import DeviceLike, as_devices, get_devices


class ToyModel(nn.Module):
    """Two linear layers, one on each of two devices: the smallest model that is split.

    Source: PyTorch's tutorial on single-machine model parallelism.
    """

    def __init__(self, devices: Sequence[DeviceLike] | None = None) -> None:
        super().__init__()
        self.devices = two_devices(devices)
        self.net1 = nn.Linear(10, 10).to(self.devices[0].device)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5).to(self.devices[1].device)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Take rows of shape (N, 10) on any device to (N, 5) on the second device."""
        first, second = self.devices
        hidden = parallel_apply([self.net1], [rows.to(first.device)], devices=[first])[0]
        hidden = self.relu(hidden).to(second.device)
        return parallel_apply([self.net2], [hidden], devices=[second])[0]


def two_devices(devices: Sequence[DeviceLike] | None) -> list[Any]:
    """Two devices, or an error that says how many were given."""
    chosen = get_devices(2) if devices is None else as_devices(devices)
    if len(chosen) != 2:
        raise ValueError(f"the model is cut for 2 devices; got {len(chosen)}")
    return chosen


def split_sequential(
    model: nn.Sequential, num_stages: int, *, by: str = "parameters"
) -> list[nn.Sequential]:
    """Cut a Sequential into stages so that the largest stage is as small as possible.

    Args:
        model: Its layers, not copies of them, make up the stages, under their old names.
        num_stages: 1 to the number of layers.
        by: What is balanced: "count" (of layers) or "parameters".

    Raises:
        ValueError: The model is more than its layers one after the other, or has fewer of them.
    """
    if not is_chain(model):
        kind = type(model).__name__
        raise ValueError(
            f"stages are cut from a Sequential without a forward of its own; got {kind}"
        )
    if hooks := hooks_of(model):
        raise ValueError(f"the stages would lose the model's {hooks}: put hooks on its layers")
    if not 1 <= num_stages <= len(model):
        raise ValueError(f"{len(model)} layers make 1 to {len(model)} stages; got {num_stages}")
    bounds = balanced_bounds(layer_costs(model, by=by), num_stages)
    layers = list(model._modules.items())
    return [nn.Sequential(OrderedDict(layers[start:end])) for start, end in pairwise(bounds)]


def is_chain(model: nn.Module) -> bool:
    """Whether a module is its layers one after the other, and nothing else.

    Residual blocks are often written as a Sequential with a forward of its own: not these.
    """
    forward = getattr(model.forward, "__func__", None)
    return isinstance(model, nn.Sequential) and forward is nn.Sequential.forward


def hooks_of(module: nn.Module) -> str:
    """The kinds of hooks that somebody has put on a module itself, as words; "" for none."""
    kinds = [kind for kind, hooks in vars(module).items() if kind.endswith("_hooks") and hooks]
    return ", ".join(kind.strip("_").replace("_", " ") for kind in kinds)


def layer_costs(model: nn.Sequential, *, by: str = "parameters") -> list[float]:
    """What each layer costs: 1 ("count"), or its number of parameters."""
    if by == "count":
        return [1.0] * len(model)
    if by == "parameters":
        return [float(sum(p.numel() for p in layer.parameters())) for layer in model]
    raise ValueError(f'by is "count" or "parameters"; got {by!r}')


def balanced_bounds(costs: Sequence[float], num_stages: int) -> list[int]:
    """Where to cut so that the costliest stage is as cheap as possible.

    Every way to cut is considered (dynamic programming over the last cut); filling up stages from
    the front until they are "full" is not optimal.

    What is returned are num_stages + 1 bounds, from 0 to len(costs): stage s has the layers
    bounds[s] to bounds[s + 1] - 1, and none is empty.
    """
    if not 1 <= num_stages <= len(costs):
        raise ValueError(f"{len(costs)} layers make 1 to {len(costs)} stages; got {num_stages}")
    if wrong := [cost for cost in costs if not 0 <= cost < math.inf]:
        raise ValueError(f"costs are finite and 0 or more; got {wrong}")
    before = [0.0, *accumulate(costs)]
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [0])}  # end -> costliest stage, bounds
    for stage in range(num_stages):
        after = num_stages - stage - 1  # layers that must be left for the stages to come
        best = {
            end: min(
                (max(worst, before[end] - before[start]), [*bounds, end])
                for start, (worst, bounds) in best.items()
                if start < end
            )
            for end in range(stage + 1, len(costs) - after + 1)
        }
    return best[len(costs)][1]
