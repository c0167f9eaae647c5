"""Checks of page `start_here`: a speed-up, a timeline, a clock."""

import threading
import time
from collections.abc import Callable
from typing import Any

from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    short,
    try_out,
)
from mpcourse.devices.devices import Device, get_devices, synchronize
from mpcourse.schedules.timeline import Event, Timeline

NAP_S = 0.2
OLDER_S = 0.4


def check_speedup(attempt: Callable[[float, float], float]) -> Verdict:
    """Check `my_speedup(before_s, after_s)`: how many times as fast.

    Args:
        attempt: Takes the time before and after, in seconds, returns the speed-up.
    """
    cases = [_speedup_case(*times) for times in ((6.0, 2.0), (3.0, 4.0), (0.5, 0.5))]
    return check_cases(attempt, cases, where='"A check, failed on purpose"')


def _speedup_case(before: float, after: float) -> Case:
    right = before / after
    known = (
        (after / before, "That is upside down: a speed-up above 1 means faster than before."),
        (before - after, "That is the time saved; a speed-up is a ratio and has no unit."),
        ((before - after) / before * 100, "That is the time saved in percent."),
        ((before - after) / before, "That is the share of the time saved, not how many times."),
        ((before - after) / after, "That is how much more per second; twice as fast is 2, not 1."),
        (right * 100, "That is in percent; a speed-up of 2 means twice as fast."),
    )
    distinct = tuple(pair for pair in known if abs(pair[0] - right) > 1e-6)
    return Case(f"{before:g} s before and {after:g} s after", (before, after), right, distinct)


def exercise_timeline() -> Timeline:
    """The timeline of the exercise: device A works from 0 to 8, device B from 1 to 3."""
    jobs = (Event(0, "job 1", 0, 3), Event(1, "job 2", 1, 3), Event(0, "job 3", 3, 8))
    return Timeline(jobs, 2)


def check_idle(idle_device: Any, idle_share: Any) -> Verdict:
    """Check which device of `exercise_timeline` idles, and for what share of its time.

    Args:
        idle_device: "A" or "B".
        idle_share: Between 0 and 1.
    """
    where = '"How much of a device is wasted?"'
    if idle_device is ... or idle_share is ...:
        return not_attempted()
    timeline = exercise_timeline()
    if str(idle_device).casefold().replace("device", "").strip() != "b":
        line = "Look for white: from 0 to 8, which row is not filled?"
        return not_yet([f"expected a device that waits, got {short(idle_device)}", line], where)
    if isinstance(idle_share, bool) or not isinstance(idle_share, int | float):
        return not_yet([f"The share is a number from 0 to 1; got {short(idle_share)}."], where)
    busy = timeline.busy(1) / timeline.makespan
    if abs(idle_share - (1 - busy)) < 1e-6:
        return correct("Device B works for 2 of 8 units and waits for the other 6.")
    known = (
        (busy, "That is the share in which B works; the rest is idle."),
        (timeline.bubble_fraction, "That is the idle share of both devices; asked is B's alone."),
        ((1 - busy) * 100, "That is in percent; give a share between 0 and 1."),
        (
            timeline.makespan - timeline.busy(1),
            "Those are units of time; divide by the time of the whole run.",
        ),
        (0.625, "B also waits before its job: count the time from 0 to 1."),
        (0.125, "B also waits after its job: the run lasts until A has ended."),
        (1 / 3, "The run lasts until A has ended, not until B has."),
    )
    meant = [message for share, message in known if abs(idle_share - share) < 0.006]
    line = "1 - (time in which B works) / (time until the last device has ended)"
    return not_yet([f"got {short(idle_share)} for device B", *(meant or [line])], where)


def check_time(attempt: Callable[[Device, Callable[[], Any]], float]) -> Verdict:
    """Check `my_time(device, fn)`: how many seconds the device needs for `fn`.

    Args:
        attempt: Takes a `Device` and a function, returns seconds.
    """
    where = '"You handed the work over. What did the clock see?"'
    if not callable(attempt):
        return no_function(attempt, where)
    for older in (False, True):
        trial = _Nap(get_devices(1)[0])
        if older:
            trial.device.submit(time.sleep, OLDER_S)
        start = time.perf_counter()
        measured, problem = try_out(attempt, trial.device, trial.nap)
        whole = time.perf_counter() - start
        synchronize([trial.device])  # work that was handed over, but not waited for
        if problem is None and measured is ...:
            return not_attempted()
        problem = problem or trial.problem(measured, whole)
        if problem:
            busy = f", busy with {OLDER_S:g} seconds of older work," if older else ""
            given = f"Given {trial.device}{busy} and a function that naps {NAP_S:g} seconds:"
            return not_yet([given, problem], where)
    return correct("A nap was measured as such, also behind older work.")


class _Nap:
    """A function that takes a known time, and what was seen of it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.threads: list[str] = []
        self.seconds = 0.0

    def nap(self) -> str:
        self.threads.append(threading.current_thread().name)
        start = time.perf_counter()
        time.sleep(NAP_S)
        self.seconds = time.perf_counter() - start
        return "rested"

    def problem(self, measured: Any, whole: float) -> str | None:
        """What is wrong with the seconds measured in an attempt that took `whole` seconds."""
        if not self.threads:
            return "fn was never called."
        if self.device.name not in self.threads[0]:
            return "fn ran in another thread; hand it to the device with device.submit(fn)."
        if len(self.threads) > 1:
            return f"fn ran {len(self.threads)} times; one is asked for."
        if isinstance(measured, bool) or not isinstance(measured, int | float):
            return f"expected a number of seconds, got {short(measured)}"
        if measured < 0:
            return f"got {short(measured)}: subtract the first reading from the second."
        if measured < 0.9 * self.seconds:
            return f"got {short(measured)}: the clock was read before the work had ended."
        if measured > 100 * whole:
            return f"got {short(measured)}: give seconds, not milliseconds."
        if measured > 1.01 * whole:
            return f"got {short(measured)}, but your function returned after {whole:.3f} s."
        if measured > self.seconds + OLDER_S / 2:
            hint = "The device was busy with older work: wait for it before the first reading too."
            return f"got {short(measured)}. {hint}"
        return None
