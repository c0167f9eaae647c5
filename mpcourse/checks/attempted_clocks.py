"""Naps of a known length for an attempt at a clock (page `start_here`)."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch

from mpcourse.checks.verdict import short
from mpcourse.devices.devices import Device
from mpcourse.devices.streams import StreamContext
from mpcourse.devices.workers import Result

NAP_S = 0.2
OLDER_S = 0.4


def as_number(value: Any) -> float | None:
    """A number in whatever form it comes: float, fraction, numpy's or torch's; None for others."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


class Nap:
    """A function that takes a known time, and what was seen of it."""

    def __init__(self, device: Device, *, older: bool = False) -> None:
        self.device = device
        self.older = older
        self.busy = f", busy with {OLDER_S:g} seconds of older work," if older else ""
        self.early = "the clock was read before the work had ended."
        self.threads: list[str] = []
        self.seconds = 0.0

    def nap(self) -> str:
        """Note the thread and sleep: the function whose time is asked for."""
        self.threads.append(threading.current_thread().name)
        self.sleep()
        return "rested"

    def sleep(self) -> None:
        """Sleep, and note for how long."""
        start = time.perf_counter()
        time.sleep(NAP_S)
        self.seconds = time.perf_counter() - start

    def problem(self, measured: Any, whole: float) -> str | None:
        """What is wrong with the seconds measured in an attempt that took `whole` seconds."""
        if not self.threads:
            return "fn was never called."
        if self.device.name not in self.threads[0]:
            return "fn ran in another thread; hand it to the device with device.submit(fn)."
        if len(self.threads) > 1:
            return f"fn ran {len(self.threads)} times; one is asked for."
        seconds, got = as_number(measured), f"got {short(measured)}"
        if seconds is None:
            return f"expected a number of seconds, {got}"
        if seconds in (round(whole), round(whole, 1), round(whole, 2)):
            return f"{got}: that is rounded; return the difference of the two readings as it is."
        if seconds < 0:
            return f"{got}: subtract the first reading from the second."
        if seconds < 0.9 * self.seconds:
            return f"{got}: {self.early}"
        if seconds > 100 * whole:
            return f"{got}: give seconds, not milliseconds."
        if seconds > 1.01 * whole:
            return f"{got}, but your function returned after {whole:.3f} s."
        if seconds > self.seconds + OLDER_S / 2:
            hint = "The device was busy with older work: wait for it before the first reading too."
            return f"{got}. {hint}"
        return None


class LateNap(Nap):
    """A nap on a stand-in for a GPU, which goes on after the call has returned."""

    def __init__(self) -> None:
        cpu = torch.device("cpu")
        super().__init__(_QueueingDevice(0, cpu, "cpu core", "a device that queues, as GPUs do,"))
        self.early += (
            " On this device run returns early: synchronize before that reading too,"
            " and hand synchronize the device that you were given."
        )

    def nap(self) -> str:
        """Note the thread, queue the sleep and return."""
        self.threads.append(threading.current_thread().name)
        self.device.queued.append(self.device.queue.submit(self.sleep))
        return "queued"


@dataclass(frozen=True)
class _QueueingDevice(Device):
    """A device whose `run` returns before the work is done; only `synchronize` waits for it."""

    queue: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1), compare=False)
    queued: list[Future] = field(default_factory=list, compare=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Result:
        if isinstance(getattr(fn, "__self__", None), StreamContext):  # of `synchronize`
            for future in self.queued:
                future.result()
        return super().submit(fn, *args, **kwargs)
