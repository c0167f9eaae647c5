"""Where the time goes: a `DataParallel` forward (page `parallel_apply`), the step of a split model.

Page `pipeline`.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from mpcourse.data_parallel.replicas import parallel_apply, replicate
from mpcourse.data_parallel.scatter_gather import gather, scatter
from mpcourse.devices.devices import Device, DeviceLike, as_devices
from mpcourse.devices.timing import HostClock, clock_for, clocked
from mpcourse.schedules.actions import Action
from mpcourse.schedules.timeline import Event, Timeline

REPEATS = 5


def forward_timeline(
    module: nn.Module, batch: torch.Tensor, devices: Sequence[DeviceLike]
) -> Timeline:
    """Measure one data-parallel forward pass: what the caller does, and what each device does.

    The verbs are those of `DataParallel`, with all devices idle between them, so that each has its
    own time. Of five passes, the one of median length is returned.

    Args:
        module: On the first device.
        batch: Shape (N, ...), on any device.
        devices: One replica each.

    Returns:
        Device 0 of the timeline is the calling thread (scatter, replicate, gather); device i + 1
        is `devices[i]`. In seconds.
    """
    places = as_devices(devices)
    _forward_once(module, batch, places)  # warm up
    runs = [_forward_once(module, batch, places) for _ in range(REPEATS)]
    return sorted(runs, key=lambda run: run.makespan)[REPEATS // 2]


def _forward_once(module: nn.Module, batch: torch.Tensor, devices: list[Device]) -> Timeline:
    events: list[Event] = []

    def timed(index: int, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        waited_for = devices if index == 0 else [devices[index - 1]]
        value, start, end = clocked(lambda: fn(*args), waited_for)
        events.append(Event(index, name, start, end))
        return value

    def on_device(index: int, replica: nn.Module) -> Callable[[torch.Tensor], Any]:
        return lambda chunk: timed(index + 1, f"replica {index}", replica, chunk)

    chunks = timed(0, "scatter", scatter, batch, devices)
    used = devices[: len(chunks)]
    replicas = timed(0, "replicate", replicate, module, used)
    calls = [on_device(index, replica) for index, replica in enumerate(replicas)]
    outputs = parallel_apply(calls, chunks, devices=used)
    timed(0, "gather", gather, outputs, devices[0])
    return Timeline.from_clock(events, len(devices) + 1)


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
    pieces = itertools.count()
    first = stage[0].register_forward_pre_hook(
        lambda *_: clock.start(Action(index, "F", next(pieces)))
    )
    return [first, stage[-1].register_forward_hook(lambda *_: clock.end())]
