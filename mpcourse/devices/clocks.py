"""When each action of a device began and ended (page `pipeline`).

On the CPU the host's clock tells; on CUDA events on the device's stream do, because the host is
far ahead of the device there.
"""

import time
from typing import Any

import torch

from mpcourse.schedules.timeline import Event


class HostClock:
    """Start and end of each action by the host's clock: a CPU call is done when it returns."""

    def __init__(self) -> None:
        self._times: list[tuple[Any, Any, Any]] = []

    def zero(self) -> None:
        """Nothing to set: the host's clock is the same for all devices."""

    now = staticmethod(time.perf_counter)  # what a note takes as its beginning

    def note(self, action: Any, began: Any) -> None:
        """Note that `action` has ended, which began at `began`, what `now` returned then."""
        self._times.append((action, began, self.now()))

    def start(self, action: Any) -> None:
        """Note that `action` begins."""
        self._action, self._start = action, self.now()

    def end(self) -> None:
        """Note that it has ended."""
        self.note(self._action, self._start)

    def events(self, device_index: int) -> list[Event]:
        """All that was noted, in seconds of the host's clock."""
        return [Event(device_index, *row) for row in self._times]


class CudaClock(HostClock):
    """Start and end by events on the device's stream, which the host need not wait for."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def zero(self) -> None:
        """Wait for the device, and note what the host's clock shows at its first event."""
        torch.cuda.synchronize(self._device)
        self._zero_s = time.perf_counter()
        self._zero = self.now()

    def now(self) -> torch.cuda.Event:
        """Put an event on the stream that this thread uses there, behind what is queued on it."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def events(self, device_index: int) -> list[Event]:
        """Wait for the device, then read all events, in seconds of the host's clock."""
        torch.cuda.synchronize(self._device)

        def seconds(mark: torch.cuda.Event) -> float:
            return self._zero_s + self._zero.elapsed_time(mark) / 1e3

        return [Event(device_index, a, seconds(s), seconds(e)) for a, s, e in self._times]


def clock_for(device: torch.device) -> HostClock:
    """The clock that tells the truth about `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
