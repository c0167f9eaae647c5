"""Where the time goes in the step of a split model (page `pipeline`)."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mpcourse.devices.devices import as_devices
from mpcourse.devices.timing import HostClock, clock_for, clocked
from mpcourse.schedules.actions import Action
from mpcourse.schedules.timeline import Event, Timeline


def split_step_timeline(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    loss_fn: Callable[[Any, Any], torch.Tensor],
) -> Timeline:
    """Measure one training step of a split model that leaves its backward to autograd.

    Args:
        model: With `devices` and `stages()`, its two halves, as `PipelineParallelResNet50`.
        images: Shape (N, ...).
        labels: Shape (N, ...), on any device.
        loss_fn: `loss_fn(output, labels)`.

    Returns:
        Devices 0 and 1 of the timeline are the model's, with a forward for each piece; device 2 is
        the caller, a worker of one thread, with its one call of `backward()`. In seconds.
    """
    caller = as_devices(["cpu:2"])[0]  # the notebook's own thread would borrow other cores
    runs = [caller.run(_split_step, model, images, labels, loss_fn) for _ in range(2)]
    return runs[1]  # the first one warms up


def _split_step(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    loss_fn: Callable[[Any, Any], torch.Tensor],
) -> Timeline:
    clocks = [clock_for(device.device) for device in model.devices]
    for clock in clocks:
        clock.zero()
    stages = zip(model.stages(), clocks, strict=True)
    hooks = [hook for index, (s, clock) in enumerate(stages) for hook in _note(index, s, clock)]
    try:
        output = model(images)
    finally:
        for hook in hooks:
            hook.remove()
    loss = loss_fn(output, labels.to(output.device))
    _, start, end = clocked(loss.backward, model.devices)
    backward = Event(2, "backward()", start, end)
    events = [event for index, clock in enumerate(clocks) for event in clock.events(index)]
    return Timeline.from_clock([*events, backward], 3)


def _note(index: int, stage: nn.Sequential, clock: HostClock) -> list:
    """Hooks on the first and the last layer of a stage that note its forwards."""
    pieces, starts = itertools.count(), []

    def note(*_: Any) -> None:
        clock.note(Action(index, "F", next(pieces)), starts.pop())

    first = stage[0].register_forward_pre_hook(lambda *_: starts.append(clock.now()))
    return [first, stage[-1].register_forward_hook(note)]
