"""Where the time of a DataParallel forward pass goes, verb by verb (page 02)."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from mpcourse.devices import Device, DeviceLike, as_devices, synchronize
from mpcourse.parallel_apply import parallel_apply
from mpcourse.replicate import replicate
from mpcourse.scatter_gather import gather, scatter
from mpcourse.timeline import Event, Timeline


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
    if repeats < 1:
        raise ValueError(f"repeats is 1 or more; got {repeats}")
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
