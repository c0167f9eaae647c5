"""Time the blocks of a model one by one, in whole training steps, and leave no trace of it.

Pages `split_a_model` and `resnet50_on_two_devices`.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from mpcourse.devices.devices import DeviceLike, as_devices
from mpcourse.devices.timing import HostClock, clock_for, limited
from mpcourse.schedules.actions import Action
from mpcourse.schedules.simulation import Costs, costs_from
from mpcourse.schedules.timeline import Timeline

Loss = Callable[[Any, Any], Tensor]
REPEATS = 5  # steps that count


def measure_blocks(
    blocks: Sequence[nn.Module],
    inputs: Any,
    targets: Any,
    loss_fn: Loss,
    device: DeviceLike,
) -> Costs:
    """Measure forward and backward of every block, in whole training steps on one device.

    The steps run on copies of the blocks, in the device's worker, so that each block meets the
    memory as it is in a real step, and weights, gradients, running statistics and torch's random
    numbers stay as they are.

    One after the other, the blocks are the model; the loss counts as part of the last. What is
    returned has one forward and one backward per block: the medians, in seconds.
    """
    if not len(blocks):
        raise ValueError("blocks is empty; there is nothing to measure")
    [home] = as_devices([device])
    copies = [copy.deepcopy(block).to(home.device) for block in blocks]
    batch = tree_map(lambda leaf: _placed(leaf, home.device), (inputs, targets))
    events = home.run(_measure, copies, batch, loss_fn)
    return costs_from(Timeline(tuple(events), 1))


def _measure(blocks: list[nn.Module], batch: tuple[Any, Any], loss_fn: Loss) -> list:
    """In the worker: the events of the steps that count."""
    place = torch.get_default_device()
    for leaf in tree_leaves(batch):
        place = leaf.device if isinstance(leaf, Tensor) else place
    gpus = [place] if place.type == "cuda" else []
    with torch.random.fork_rng(gpus), torch.enable_grad():
        _step(blocks, batch, loss_fn, clock_for(place))  # warms up
        clock = clock_for(place)
        clock.zero()
        for _ in range(limited(REPEATS)):
            _step(blocks, batch, loss_fn, clock)
        return clock.events(0)


def _step(blocks: list[nn.Module], batch: tuple[Any, Any], loss_fn: Loss, clock: HostClock) -> None:
    """Forward through all blocks and back again; the graph is cut between them."""
    value, targets = batch
    edges = []
    for index, block in enumerate(blocks):
        leaves, structure = tree_flatten(value)
        leaves = [_leaf(leaf, needs_gradient=index > 0) for leaf in leaves]
        start = clock.now()
        value = block(tree_unflatten([_passed(leaf) for leaf in leaves], structure))
        if index == len(blocks) - 1:
            value = loss_fn(value, targets)
        clock.note(Action(index, "F", 0), start)
        edges.append((_tensors(leaves), _tensors(tree_leaves(value))))
    gradients: list[Tensor | None] = [None]  # the loss has no other
    for index in reversed(range(len(blocks))):
        leaves, outputs = edges.pop()
        ways = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad and (gradient is not None or output.ndim == 0)
        ]
        start = clock.now()
        if ways:
            torch.autograd.backward(*map(list, zip(*ways, strict=True)))
        clock.note(Action(index, "B", 0), start)
        gradients = [leaf.grad for leaf in leaves]


class _Pass(torch.autograd.Function):
    """The same numbers, so that a block may begin in place: on a leaf autograd refuses that."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _passed(leaf: Any) -> Any:
    is_leaf = isinstance(leaf, Tensor) and leaf.requires_grad
    return _Pass.apply(leaf) if is_leaf else leaf


def _leaf(value: Any, *, needs_gradient: bool) -> Any:
    """The start of a block's own graph; data gets no gradient."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_(needs_gradient and value.requires_grad)


def _tensors(leaves: list[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _placed(leaf: Any, place: torch.device) -> Any:
    return leaf.detach().to(place) if isinstance(leaf, Tensor) else leaf
