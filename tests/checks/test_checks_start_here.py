"""The checks accept right answers however they are written and explain wrong ones."""

import contextlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from solutions import start_here as solutions

from mpcourse.checks import check_idle, check_speedup, check_time, check_worker, verdict
from mpcourse.checks.start_here import exercise_timeline
from mpcourse.devices.devices import synchronize


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_what_is_no_function_is_said():
    assert check_time(...).state == "not attempted"
    assert "takes a function" in said(check_time(0.2))


def test_stubs_are_not_attempted():
    assert check_speedup(lambda before, after: ...).state == "not attempted"
    assert check_idle(..., ...).state == "not attempted"
    assert check_idle("B", ...).state == "not attempted"
    assert check_worker(lambda: ...).state == "not attempted"
    assert check_time(lambda device, fn: ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_speedup(solutions.my_speedup).state == "correct"
    assert check_idle(solutions.idle_device, solutions.idle_share).state == "correct"
    assert check_worker(solutions.my_worker).state == "correct"
    assert check_time(solutions.my_time).state == "correct"


def clock_of_another_kind(device, fn):
    synchronize()  # all devices
    start = time.monotonic_ns()
    device.run(fn)
    synchronize([device])
    return np.float64((time.monotonic_ns() - start) / 1e9)


def test_other_right_answers_are_correct():
    assert check_speedup(lambda before, after: 1 / (after / before)).state == "correct"
    assert check_idle("device b", 1 - 0.25).state == "correct"
    assert check_time(clock_of_another_kind).state == "correct"
    for share in (Fraction(3, 4), np.float32(0.75), torch.tensor(0.75)):
        assert check_idle("B", share).state == "correct"


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda before, after: after / before, "upside down"),
        (lambda before, after: before - after, "a ratio and has no unit"),
        (lambda before, after: (before - after) / before * 100, "in percent"),
        (lambda before, after: (before - after) / after, "how much more per second"),
        (lambda before, after: (before - after) / before, "the share of the time saved"),
        (lambda before, after: before / after * 100, "in percent; a speed-up of 2"),
        (lambda before, after: f"{before / after}x", "expected 3"),
        (lambda before, after: round(before / after, 2), "That is rounded"),
        (lambda before, after: before // after, "expected 0.75"),
        (lambda before: before, "TypeError"),
    ],
)
def test_wrong_speedups_are_explained(attempt, words):
    assert words in said(check_speedup(attempt))


@pytest.mark.parametrize(
    ("device", "share", "words"),
    [
        ("A", 0.75, "which row is not filled"),
        (1, 0.75, "which row is not filled"),
        ("B", 0.25, "the share in which B works"),
        ("B", 0.375, "both devices"),
        ("B", 0.38, "both devices"),
        ("B", 75, "in percent"),
        ("B", 6, "divide by the time of the whole run"),
        ("B", 0.625, "before its job"),
        ("B", 0.125, "after its job"),
        ("B", 1 / 3, "until A has ended"),
        ("B", 0.5, "until the last device has ended"),
        ("B", "0.75", "a number from 0 to 1"),
        ("B", True, "a number from 0 to 1"),
    ],
)
def test_wrong_readings_are_explained(device, share, words):
    assert words in said(check_idle(device, share))


def test_the_timeline_of_the_exercise_is_what_its_check_says():
    timeline = exercise_timeline()
    assert [timeline.busy(0), timeline.busy(1), timeline.makespan] == [8, 2, 8]
    assert timeline.bubble_fraction == 0.375


# Workers


def by_future():
    pool = ThreadPoolExecutor(1)
    return lambda fn: pool.submit(fn).result


def test_a_worker_by_a_library_is_a_worker():
    assert check_worker(by_future).state == "correct"


def at_once():
    def hand_over(fn):
        value = fn()
        return lambda: value

    return hand_over


def a_thread_for_each_job():
    return lambda fn: ThreadPoolExecutor(1).submit(fn).result


def waits_in_hand_over():
    worker = by_future()

    def hand_over(fn):
        value = worker(fn)()
        return lambda: value

    return hand_over


def one_box():
    worker, box = by_future(), queue.SimpleQueue()

    def hand_over(fn):
        worker(lambda: box.put(fn()))
        return lambda: box.get(timeout=0.2)

    return hand_over


def returns_the_error():
    worker = by_future()

    def hand_over(fn):
        def quiet():
            try:
                return fn()
            except Exception as error:
                return error

        return worker(quiet)

    return hand_over


def dies_of_an_error():
    jobs = queue.SimpleQueue()

    def serve():
        with contextlib.suppress(IndexError):
            while True:
                fn, box = jobs.get()
                box.put(fn())

    def hand_over(fn):
        box = queue.SimpleQueue()
        jobs.put((fn, box))
        return box.get

    threading.Thread(target=serve, daemon=True).start()
    return hand_over


def dies_after_telling():
    jobs = queue.SimpleQueue()

    def serve():
        while True:
            fn, box = jobs.get()
            try:
                box.put((fn(), None))
            except IndexError as error:
                box.put((None, error))
                return

    def hand_over(fn):
        box = queue.SimpleQueue()
        jobs.put((fn, box))

        def wait():
            value, error = box.get()
            if error:
                raise error
            return value

        return wait

    threading.Thread(target=serve, daemon=True).start()
    return hand_over


ONE_POOL = ThreadPoolExecutor(1)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (None, "takes a function"),
        (lambda: 5, "expected the function hand_over, got 5"),
        (lambda: lambda fn: fn, "expected 'one thread of its own', got \"the caller's thread\""),
        (lambda: lambda fn: fn(), "TypeError"),
        (at_once, "the caller's thread"),
        (a_thread_for_each_job, "a new thread for each job"),
        (waits_in_hand_over, "it waited for the job"),
        (one_box, "Each job needs a box of its own"),
        (returns_the_error, "wait returned IndexError"),
        (dies_of_an_error, "put it into the box, and raise it in wait"),
        (dies_after_telling, "The thread has ended with the error"),
        (lambda: lambda fn: ONE_POOL.submit(fn).result, "Each worker has its own queue"),
    ],
)
def test_wrong_workers_are_explained(attempt, words, monkeypatch):
    monkeypatch.setattr(verdict, "TIME_LIMIT_S", 1.5)
    assert words in said(check_worker(attempt))


# Clocks


def clock(read):
    """A learner's clock: `read(device, fn, start)` gives what it returns."""

    def attempt(device, fn):
        synchronize([device])
        return read(device, fn, time.perf_counter())

    return attempt


def without_the_first_wait(device, fn):
    start = time.perf_counter()
    device.run(fn)
    return time.perf_counter() - start


def test_older_work_must_not_be_counted():
    assert "wait for it before the first reading" in said(check_time(without_the_first_wait))


def halved(device, fn, start):
    device.run(fn)
    return (time.perf_counter() - start) / 2


def doubled(device, fn, start):
    device.run(fn)
    return (time.perf_counter() - start) * 2


def too_early(device, fn, start):
    device.submit(fn)
    return time.perf_counter() - start


def backwards(device, fn, start):
    device.run(fn)
    return start - time.perf_counter()


def in_milliseconds(device, fn, start):
    device.run(fn)
    return 1000 * (time.perf_counter() - start)


def in_this_thread(device, fn, start):
    fn()
    return time.perf_counter() - start


def without_the_last_wait(device, fn, start):
    device.run(fn)
    return time.perf_counter() - start


def by_waiting_for_the_worker(device, fn, start):
    device.submit(fn)
    device.run(lambda: None)
    return time.perf_counter() - start


def rounded(device, fn, start):
    device.run(fn)
    synchronize([device])
    return round(time.perf_counter() - start, 1)


def twice(device, fn, start):
    device.run(fn)
    device.run(fn)
    return (time.perf_counter() - start) / 2


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (too_early, "before the work had ended"),
        (without_the_last_wait, "synchronize before that reading too"),
        (by_waiting_for_the_worker, "synchronize before that reading too"),
        (rounded, "that is rounded"),
        (backwards, "subtract the first reading"),
        (in_milliseconds, "not milliseconds"),
        (in_this_thread, "ran in another thread"),
        (halved, "before the work had ended"),
        (doubled, "but your function returned after"),
        (twice, "ran 2 times"),
        (lambda device, fn, start: device.run(fn), "expected a number of seconds"),
        (lambda device, fn, start: 0.2, "never called"),
        (lambda device, fn, start: device.run(fn, 1), "TypeError"),
    ],
)
def test_wrong_clocks_are_explained(read, words):
    assert words in said(check_time(clock(read)))
