"""Checks of page `start_here`: a speed-up, a timeline, a clock."""

import threading
import time
from collections.abc import Callable
from typing import Any

from mpcourse.checks.attempted_clocks import NAP_S, OLDER_S, LateNap, Nap, as_number
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


def check_speedup(attempt: Callable[[float, float], float]) -> Verdict:
    """Check `my_speedup(before_s, after_s)`: how many times as fast.

    Args:
        attempt: Takes the time before and after, in seconds, returns the speed-up.
    """
    cases = [_speedup_case(*times) for times in ((6.0, 2.0), (3.0, 4.0), (2.0, 3.0), (0.5, 0.5))]
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
        *(
            (round(right, digits), "That is rounded: return the ratio as it is.")
            for digits in (0, 1, 2)
        ),
    )
    given, hint = f"{before:g} s before and {after:g} s after", "A number: one time by the other."
    return Case(given, (before, after), right, known, hint)


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
    given, idle_share = idle_share, as_number(idle_share)
    if idle_share is None:
        return not_yet([f"The share is a number from 0 to 1; got {short(given)}."], where)
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


HandOver = Callable[[Callable[[], Any]], Callable[[], Any]]


def check_worker(attempt: Callable[[], HandOver]) -> Verdict:
    """Check `my_worker()`: a thread that runs what it is handed, and survives an error.

    Args:
        attempt: Starts a thread and returns `hand_over(fn)`, which returns `wait()`.
    """
    where = '"A worker in fifteen lines"'
    if not callable(attempt):
        return no_function(attempt, where)
    hand_over, problem = try_out(attempt)
    if problem is None and hand_over is ...:
        return not_attempted()
    if problem is None and not callable(hand_over):
        problem = f"expected the function hand_over, got {short(hand_over)}"
    if problem:
        return not_yet(["Given nothing:", problem], where)
    for given, trial, expected, hint in _WORKER_TRIALS:
        found, problem = try_out(trial, hand_over, attempt)
        if problem or found != expected:
            compared = problem or f"expected {short(expected)}, got {short(found)}"
            return not_yet([f"Given {given}:", compared, hint], where)
    return correct("It runs jobs in order, beside another worker, and survives an error.")


def _at_once(hand_over: HandOver, _: Any) -> Any:
    go = threading.Event()
    wait = hand_over(lambda: go.wait(1.0))
    go.set()
    return "it waited for the job" if wait() is False else "it returned at once"


def _where(hand_over: HandOver, _: Any) -> Any:
    threads = [hand_over(threading.get_ident)() for _ in range(2)]
    if threading.get_ident() in threads:
        return "the caller's thread"
    return "one thread of its own" if len(set(threads)) == 1 else "a new thread for each job"


def _in_order(hand_over: HandOver, _: Any) -> Any:
    waits = [hand_over(lambda number=number: number) for number in range(3)]
    return [wait() for wait in reversed(waits)][::-1]


def _error(hand_over: HandOver, _: Any) -> Any:
    wait = hand_over(lambda: [1, 2, 3][5])
    try:
        value = wait()
    except IndexError:
        return "wait raised IndexError"
    return f"wait returned {short(value)}"


def _overlap(hand_over: HandOver, attempt: Callable[[], HandOver]) -> Any:
    barrier = threading.Barrier(2)
    waits = [hand(lambda: barrier.wait(5) >= 0) for hand in (hand_over, attempt())]
    return [wait() for wait in waits]


_WORKER_TRIALS: tuple[tuple[str, Callable, Any, str], ...] = (
    ("a job that returns 42", lambda h, _: h(lambda: 42)(), 42, "wait returns what fn returned."),
    ("two jobs", _where, "one thread of its own", "Start one thread, when the worker is made."),
    ("a job that takes its time", _at_once, "it returned at once", "Waiting is for wait."),
    ("three jobs", _in_order, [0, 1, 2], "Each job needs a box of its own for its value."),
    (
        "a job that raises IndexError",
        _error,
        "wait raised IndexError",
        "Catch the error in the thread, put it into the box, and raise it in wait.",
    ),
    (
        "a job after one that raised",
        lambda h, _: h(lambda: 42)(),
        42,
        "The thread has ended with the error: catch it inside the loop.",
    ),
    ("two workers whose jobs meet", _overlap, [True, True], "Each worker has its own queue."),
)


def check_time(attempt: Callable[[Device, Callable[[], Any]], float]) -> Verdict:
    """Check `my_time(device, fn)`: how many seconds the device needs for `fn`.

    Args:
        attempt: Takes a `Device` and a function, returns seconds.
    """
    where = '"You handed the work over. What did the clock see?"'
    if not callable(attempt):
        return no_function(attempt, where)
    for trial in (Nap(get_devices(1)[0]), Nap(get_devices(1)[0], older=True), LateNap()):
        if trial.older:
            trial.device.submit(time.sleep, OLDER_S)
        start = time.perf_counter()
        measured, problem = try_out(attempt, trial.device, trial.nap)
        whole = time.perf_counter() - start
        synchronize([trial.device])  # work that was handed over, but not waited for
        if problem is None and measured is ...:
            return not_attempted()
        problem = problem or trial.problem(measured, whole)
        if problem:
            given = f"Given {trial.device}{trial.busy} and a function that naps {NAP_S:g} seconds:"
            return not_yet([given, problem], where)
    return correct("A nap was measured as such on three devices: idle, busy, and one that queues.")
