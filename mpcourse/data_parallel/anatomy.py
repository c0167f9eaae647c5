"""Where the time goes: a DataParallel forward, the step of a split model (page `pipeline`).

Page `parallel_apply`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from mpcourse.data_parallel.parallel_apply import parallel_apply
from mpcourse.data_parallel.replicate import replicate
from mpcourse.data_parallel.scatter_gather import gather, scatter
from mpcourse.devices.devices import Device, DeviceLike, as_devices, synchronize
from mpcourse.devices.timing import clock_for
from mpcourse.schedules.actions import Action, check_count
from mpcourse.schedules.timeline import Event, Timeline


def forward_timeline(
    module: nn.Module, batch: torch.Tensor, devices: Sequence[DeviceLike], *, repeats: int = 5
) -> Timeline:
    """Measure one data-parallel forward pass: what the caller does, and what each device does.

    The verbs are those of `DataParallel`, with all devices idle between them, so that each has its
    own time.

    Args:
        module: On the first device.
        batch: Shape (N, ...), on any device.
        devices: One replica each.
        repeats: How many passes, 1 or more; the one of median length is returned.

    Returns:
        Device 0 of the timeline is the calling thread (scatter, replicate, gather); device i + 1
        is `devices[i]`. In seconds.
    """
    check_count("repeats", repeats)
    places = as_devices(devices)
    _forward_once(module, batch, places)  # warm up
    runs = [_forward_once(module, batch, places) for _ in range(repeats)]
    return sorted(runs, key=lambda run: run.makespan)[(repeats - 1) // 2]


def _forward_once(module: nn.Module, batch: torch.Tensor, devices: list[Device]) -> Timeline:
    events: list[Event] = []

    def timed(index: int, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        waited_for = devices if index == 0 else [devices[index - 1]]
        synchronize(waited_for)
        start = time.perf_counter()
        value = fn(*args)
        synchronize(waited_for)
        events.append(Event(index, name, start, time.perf_counter()))
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
    *,
    repeats: int = 3,
) -> Timeline:
    """Measure one training step of a split model that leaves its backward to autograd.

    Args:
        model: With `devices` and the methods `front` and `back`, as `PipelineParallelResNet50`.
        images: Shape (N, ...).
        labels: Shape (N, ...), on any device.
        loss_fn: The loss.
        repeats: How many steps, 1 or more; the one of median length is returned.

    Returns:
        Devices 0 and 1 of the timeline are the model's, with a forward for each piece; device 2 is
        the caller, a worker of one thread, with its one call of `backward()`. In seconds.
    """
    check_count("repeats", repeats)
    caller = as_devices(["cpu:2"])[0]  # the notebook's own thread would borrow other cores
    runs = [caller.run(_split_step, model, images, labels, loss_fn) for _ in range(1 + repeats)]
    return sorted(runs[1:], key=lambda run: run.makespan)[(repeats - 1) // 2]  # one to warm up


def _split_step(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    loss_fn: Callable[[Any, Any], torch.Tensor],
) -> Timeline:
    clocks = [clock_for(device.device) for device in model.devices]
    done = [0, 0]

    def timed(index: int, half: Callable[[torch.Tensor], torch.Tensor]) -> Callable:
        def run(value: torch.Tensor) -> torch.Tensor:
            clocks[index].start(Action(index, "F", done[index]))
            output = half(value)
            clocks[index].end()
            done[index] += 1
            return output

        return run

    for clock in clocks:
        clock.zero()
    model.front, model.back = timed(0, model.front), timed(1, model.back)
    try:
        output = model(images)
    finally:
        del model.front, model.back  # the methods come to light again
    loss = loss_fn(output, labels.to(output.device))
    synchronize(model.devices)
    start = time.perf_counter()
    loss.backward()
    synchronize(model.devices)
    backward = Event(2, "backward()", start, time.perf_counter())
    events = [event for index, clock in enumerate(clocks) for event in clock.events(index)]
    return Timeline.from_clock([*events, backward], 3)
