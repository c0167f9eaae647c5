"""Measuring time honestly: warm up, wait for every device, repeat, keep the spread.

Page `start_here`.

Why not `torch.utils.benchmark.Timer`: it runs in the calling thread and waits for one device only;
work handed to workers, or queued on a second GPU, would still be running when it reads the clock.
"""

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mpcourse.devices.devices import DeviceLike, as_devices, describe_devices, synchronize
from mpcourse.devices.workers import collect
from mpcourse.schedules.timeline import Event, Timeline

LIMIT = "MPCOURSE_REPEATS"  # environment: repeats that count at most, where pages are tested


def limited(asked: int) -> int:
    """How often to repeat what is measured: `asked`, or the limit of the environment.

    The tests of the pages set one: they look at what a page computes, not at how fast. All
    processes of a run have the same environment, so that ranks agree.
    """
    return min(asked, int(os.environ.get(LIMIT, asked)))


@dataclass(frozen=True)
class Timing:
    """One measured time with its spread and where it was measured.

    Attributes:
        times_s: Every repeat, in seconds, in the order they ran.
        warmup: How many runs before them were not counted.
        devices: The devices that were waited for, in words.
        machine: Processor, Python and torch, in words.
    """

    times_s: tuple[float, ...]
    warmup: int
    devices: str
    machine: str

    @property
    def repeats(self) -> int:
        """How many runs were counted."""
        return len(self.times_s)

    @property
    def median_s(self) -> float:
        """The middle time in seconds: one slow run does not move it."""
        return statistics.median(self.times_s)

    @property
    def iqr_s(self) -> float:
        """The spread in seconds: the middle half of the runs lies within it (0 for one run)."""
        if self.repeats < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times_s, n=4, method="inclusive")
        return high - low

    def __str__(self) -> str:
        times = f"{self.median_s * 1e3:.2f} ms (spread {self.iqr_s * 1e3:.2f} ms)"
        return f"{times}, median of {self.repeats}, {self.devices}"


def measure(
    fn: Callable[[], Any],
    devices: Sequence[DeviceLike] | None = None,
    *,
    warmup: int = 2,
    repeats: int = 7,
) -> Timing:
    """Time `fn()`, with the devices idle before both readings of the clock.

    `fn` runs in the calling thread; hand the work to a device inside it (`device.run(…)`) to time
    what a worker does.

    Args:
        fn: What to time; its value is dropped.
        devices: The devices to wait for; all that have been used so far when `None`.
        warmup: Runs before the clock counts, 0 or more: first calls allocate and choose kernels.
        repeats: Runs that count, 1 or more.

    Returns:
        A `Timing` in seconds.
    """
    return measure_together({"fn": fn}, devices, warmup=warmup, repeats=repeats)["fn"]


def measure_together(
    fns: Mapping[str, Callable[[], Any]],
    devices: Sequence[DeviceLike] | None = None,
    *,
    warmup: int = 2,
    repeats: int = 7,
) -> dict[str, Timing]:
    """Time several functions in turns, so that a slow moment of the machine meets all of them.

    Compare the results as ratios: two figures from two separate runs differ for reasons that have
    nothing to do with the code.

    The arguments are those of `measure`, but `fns` is name -> what to time, and so is what is
    returned: name -> `Timing`, in the order of `fns`. Repeats are `limited`.
    """
    if warmup < 0 or repeats < 1:
        raise ValueError(f"warmup is 0 or more, repeats 1 or more; got {warmup} and {repeats}")
    for _ in range(warmup):
        for fn in fns.values():
            fn()
    times: dict[str, list[float]] = {name: [] for name in fns}
    for _ in range(limited(repeats)):
        for name, fn in fns.items():
            _, start, end = clocked(fn, devices)
            times[name].append(end - start)
    where = "all devices used so far" if devices is None else describe_devices(devices)
    return {
        name: Timing(tuple(values), warmup, where, describe_machine())
        for name, values in times.items()
    }


PAUSE_S = 0.05  # longer than torch's threads look for work


def measure_awake(*groups: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, Timing]:
    """As `measure_together`, where each group of functions has threads of its own, all awake.

    In each round a pause comes before a group: torch's own threads go on looking for work for a
    while, and would be in the way of the devices' workers. Then the group's first function is
    called once without a clock, which wakes the threads of its group.

    Args:
        groups: name -> what to time, for each kind of threads; the first of each uses all of them.
        repeats: Rounds that count, 1 or more; they are `limited`.
    """
    ways: dict[Any, Callable[[], Any]] = {}
    for number, group in enumerate(groups):
        wake = next(iter(group.values()))
        ways |= {("pause", number): lambda: time.sleep(PAUSE_S), ("wake", number): wake, **group}
    # without a warm-up: one cold round moves no median
    timings = measure_together(ways, warmup=0, repeats=repeats)
    return {name: timings[name] for group in groups for name in group}


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(low, median, high): the true median lies between low and high in 19 of 20 samples.

    `values` are an odd number of independent ones, of whatever distribution. Each is below the true
    median as often as a coin shows heads. Of fewer than 7, be it two, low and high are the least
    and the most.
    """
    ordered, count, middle = sorted(values), len(values), len(values) // 2

    def share(off: int) -> float:
        heads = range(middle - off + 1, middle + off + 1)
        return sum(math.comb(count, each) for each in heads) / 2**count

    off = next((off for off in range(middle) if share(off) >= 0.95), middle)
    return ordered[middle - off], ordered[middle], ordered[min(middle + off, count - 1)]


def clocked(
    fn: Callable[[], Any], devices: Sequence[DeviceLike] | None
) -> tuple[Any, float, float]:
    """Call `fn()` with the devices idle before both readings of the clock: value, start, end."""
    synchronize(devices)
    start = time.perf_counter()
    value = fn()
    synchronize(devices)
    return value, start, time.perf_counter()


def measure_overlap(jobs: Sequence[Callable[[], Any]], devices: Sequence[DeviceLike]) -> float:
    """Time all jobs at once, one per device, over the time of the first job alone.

    Args:
        jobs: Functions without arguments, of equal work.
        devices: One for each job.

    Returns:
        The ratio of the medians: 1 is full overlap; the number of jobs is none.
    """
    places = as_devices(devices)
    if len(jobs) != len(places):
        raise ValueError(f"each device gets one job; got {len(jobs)} for {len(places)} devices")
    pairs = list(zip(places, jobs, strict=True))
    times = measure_together(
        {
            "one": lambda: places[0].run(jobs[0]),
            "all": lambda: collect([place.submit(job) for place, job in pairs]),
        },
        places,
    )
    return times["all"].median_s / times["one"].median_s


Job = tuple[DeviceLike, object, Callable[[], Any]]  # device, label, function without arguments


def measure_timeline(*rounds: Sequence[Job]) -> Timeline:
    """Hand jobs over and record when each ran.

    Each device reads the clock itself, when it is idle before the job and again after it.

    Args:
        rounds: One or several lists of (device, label, function). The jobs of a round are handed
            over at once, when those of the round before have ended; each device keeps their order.

    Returns:
        The measured `Timeline` in seconds. Devices are numbered in order of first appearance.
    """
    if not rounds or not all(rounds):
        raise ValueError("jobs is empty; name at least one (device, label, function)")
    places = [as_devices([device for device, _, _ in jobs]) for jobs in rounds]
    order = list(dict.fromkeys(place for row in places for place in row))
    events = []
    for jobs, row in zip(rounds, places, strict=True):
        results = [
            place.submit(clocked, fn, [place]) for place, (_, _, fn) in zip(row, jobs, strict=True)
        ]
        for place, (_, label, _), found in zip(row, jobs, collect(results), strict=True):
            events.append(Event(order.index(place), label, *found[1:]))
    return Timeline.from_clock(events, len(order))


def describe_machine() -> str:
    """Processor, Python and torch in one line, to be kept with every figure."""
    processor = platform.processor() or platform.machine()
    return f"{processor}, Python {platform.python_version()}, torch {torch.__version__}"


class HostClock:
    """Start and end of each action by the host's clock: a CPU call is done when it returns."""

    def __init__(self) -> None:
        self._times: list[tuple[Any, Any, Any]] = []

    def zero(self) -> None:
        """Nothing to set: the host's clock is the same for all devices."""

    now = staticmethod(time.perf_counter)  # a mark of this moment

    def note(self, action: Any, start: Any) -> None:
        """Note that `action` has ended, which began at the mark `start`."""
        self._times.append((action, start, self.now()))

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
