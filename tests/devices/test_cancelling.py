"""Work that is cancelled or interrupted ends; no result stays undone, and workers stay usable."""

import _thread
import contextlib
import multiprocessing
import os
import random
import sys
import threading
import time
import traceback

import pytest
import torch
from threads import in_time
from torch import nn
from working import LIMIT_S, python, run, wait_for

from mpcourse.devices import workers as workers_of_devices
from mpcourse.devices.devices import get_devices
from mpcourse.devices.streams import StreamContext
from mpcourse.devices.workers import Cancelled, cancel, collect, wait_until
from mpcourse.pipeline import Pipeline


@pytest.fixture
def short_grace(monkeypatch):
    """Give a job that cannot be stopped up soon: for tests that are not about how long it takes."""
    monkeypatch.setattr(workers_of_devices, "GRACE_S", 0.3)


@pytest.fixture
def take_turns():
    """A function that says after how many seconds threads take turns, until the test ends."""
    interval = sys.getswitchinterval()
    yield sys.setswitchinterval
    sys.setswitchinterval(interval)


def spin_for(seconds):
    """A Python loop, which can be stopped between any two lines."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def spin(begun=None):
    if begun is not None:
        begun.set()
    spin_for(LIMIT_S)


def sleep(begun):
    """C code, which cannot be stopped."""
    begun.set()
    time.sleep(LIMIT_S)


def interrupt_after(begun):
    """Press Ctrl-C once the event `begun` is set."""

    def interrupt():
        begun.wait(LIMIT_S)
        time.sleep(0.2)  # until the main thread waits
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()


@contextlib.contextmanager
def interrupted(begun):
    """Interrupt the block once the event `begun` is set, and expect KeyboardInterrupt out of it."""
    interrupt_after(begun)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        yield
    assert time.monotonic() - start < LIMIT_S / 2, "the work was waited for, not stopped"


# a cancelled job: what Python raises in a thread must hit the job and nothing else


class Slow(StreamContext):
    """Waits in the worker, before or after the work, until it was stopped."""

    def __init__(self, when):
        self.when, self.there, self.stopped = when, threading.Event(), threading.Event()

    def around_job(self, arguments):
        return self

    def __enter__(self):
        self.wait("before")

    def __exit__(self, *_):
        self.wait("after")

    def wait(self, when):
        if when == self.when:
            self.there.set()
            self.stopped.wait(LIMIT_S)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stop_keeps_work_from_beginning_and_leaves_alone_what_has_ended(make_workers, when):
    ran = []
    [worker] = make_workers(1, lambda: Slow(when))
    result = worker.submit(ran.append, 1)
    worker.context.there.wait(LIMIT_S)
    worker.cancel(result)
    worker.context.stopped.set()
    assert type(result.exception(LIMIT_S)) is {"before": Cancelled, "after": type(None)}[when]
    assert ran == {"before": [], "after": [1]}[when]
    assert run(worker, lambda: "usable") == "usable"


def test_a_stop_of_work_that_waits_loses_no_work_that_comes_with_it(
    workers, monkeypatch, take_turns
):
    take_turns(5)  # no other thread runs while this one goes on by itself
    monkeypatch.setattr(workers_of_devices, "GRACE_S", 0.1)
    first, second = workers
    waiting, go = threading.Event(), threading.Event()
    outer = first.submit(lambda: second.submit(wait_for, waiting, go).result())
    waiting.wait(LIMIT_S)
    time.sleep(0.05)  # `first` looks at its queue by now
    with_it = first.submit(lambda: "not lost")
    first.cancel(outer)
    assert with_it.result(LIMIT_S) == "not lost"
    assert isinstance(outer.exception(LIMIT_S), Cancelled)
    go.set()


def test_a_wait_cannot_be_stopped_at_any_line_and_heeds_a_stop_at_its_end(workers):
    exposed, went_on = [], []

    def job():
        me = threading.current_thread()
        wait_until(lambda: not exposed.append(me.exposed))
        exposed.append(me.exposed)
        wait_until(lambda: not me.cancel(me.running[-1]))
        went_on.append(True)

    result = workers[0].submit(job)
    with pytest.raises(Cancelled):
        result.result(LIMIT_S)
    assert exposed == [None, result]
    assert not went_on


@pytest.mark.usefixtures("no_looking_up")
def test_a_stop_reaches_work_below_other_work_when_that_has_ended(workers):
    first, second = workers
    order, above, go = [], threading.Event(), threading.Event()

    def inner():
        return first.submit(lambda: above.set() or go.wait(LIMIT_S)).result()

    outer = first.submit(lambda: second.submit(inner).result() and order.append("went on"))
    above.wait(LIMIT_S)
    outer.worker.cancel(outer)
    time.sleep(0.05)
    assert not outer.done()
    go.set()
    assert isinstance(outer.exception(LIMIT_S), Cancelled)
    assert order == []


def test_work_that_was_stopped_cannot_hand_over_or_wait_on(workers):
    first, second = workers
    begun, again = threading.Event(), []

    def stubborn():
        try:
            begun.set()
            spin()
        except Cancelled:
            again.append(second.submit(int).result())

    result = first.submit(stubborn)
    begun.wait(LIMIT_S)
    cancel([result])
    assert isinstance(result.exception(LIMIT_S), Cancelled)
    assert again == []


JOBS = {
    "nothing": lambda mine, other: None,
    "a loop": lambda mine, other: spin_for(random.uniform(0, 1e-4)),
    "a wait": lambda mine, other: other.submit(int).result(),
    "waits": lambda mine, other: collect([other.submit(int) for _ in range(3)]),
    "a wait for itself": lambda mine, other: [mine.submit(int) for _ in range(3)],
    "a call back": lambda mine, other: other.submit(lambda: mine.submit(int).result()).result(),
}


@pytest.mark.parametrize("kind", JOBS)
def test_200_stops_at_any_time_leave_no_result_undone_and_the_same_thread(
    workers, kind, monkeypatch, take_turns
):
    take_turns(1e-6)  # as often as they can
    monkeypatch.setattr(workers_of_devices, "GRACE_S", LIMIT_S)  # no thread is given up
    first, second = workers
    threads = [run(worker, threading.get_ident) for worker in workers]

    def stop_200_times():
        for i in range(200):
            stopped = first.submit(JOBS[kind], first, second)
            kept = [worker.submit(int, "7") for worker in workers]
            while i % 2 and not (stopped.running() or stopped.done()):
                pass
            spin_for(random.uniform(0, 2e-4))
            cancel([stopped])
            assert stopped.cancelled() or isinstance(stopped.exception(0), Cancelled | None)
            assert collect(kept) == [7, 7]

    in_time(stop_200_times)
    assert [run(worker, threading.get_ident) for worker in workers] == threads


def test_work_that_ends_after_it_was_given_up_changes_nothing(workers, monkeypatch):
    monkeypatch.setattr(workers_of_devices, "GRACE_S", 0.1)
    begun, late = threading.Event(), threading.Event()

    def stuck():
        begun.set()
        try:
            time.sleep(0.5)  # in C: it comes out with Cancelled when it was given up long ago
        except Cancelled:
            late.set()
        return "too late"

    result = workers[0].submit(stuck)
    waiting = [workers[0].submit(lambda i=i: i) for i in range(3)]
    begun.wait(LIMIT_S)
    thread = workers[0].thread
    cancel([result])
    assert collect(waiting, timeout=LIMIT_S) == [0, 1, 2]
    assert not late.is_set()
    outcome = result.exception(0)
    thread.join(LIMIT_S)
    assert late.is_set()
    assert result.exception(0) is outcome


def test_work_that_was_stopped_says_so_to_whoever_else_asks(workers):
    begun = threading.Event()
    result = workers[0].submit(spin, begun)
    begun.wait(LIMIT_S)
    cancel([result])
    for ask in (result.result, lambda: workers[1].submit(result.result).result()):
        with pytest.raises(Cancelled):
            ask()
    assert workers[1].submit(lambda: "usable").result() == "usable"


def test_a_timeout_stops_all_work(workers):
    ran = []
    jobs = [worker.submit(spin) for worker in workers] + [workers[0].submit(ran.append, "queued")]
    with pytest.raises(TimeoutError, match=r"device 0 .* is still at work after 0.1 s"):
        collect(jobs, timeout=0.1)
    assert all(job.done() for job in jobs)
    assert [worker.submit(lambda: "usable").result() for worker in workers] == ["usable"] * 2
    assert ran == []


@pytest.mark.parametrize("fn", [spin, sleep])
def test_an_interrupt_of_collect_stops_all_that_runs_and_all_that_is_queued(
    workers, short_grace, fn
):
    ran = []
    begun = threading.Event()
    jobs = [worker.submit(fn, begun) for worker in workers]
    jobs += [worker.submit(ran.append, "queued") for worker in workers for _ in range(5)]
    with interrupted(begun):
        collect(jobs)
    assert all(job.done() for job in jobs)
    assert all(job.cancelled() for job in jobs[2:])
    assert [worker.submit(int).result(LIMIT_S / 2) for worker in workers] == [0, 0]
    assert ran == []


@pytest.mark.parametrize("fn", [spin, sleep])
def test_an_interrupt_reaches_the_work_that_a_worker_waits_for(workers, short_grace, fn):
    first, second = workers
    begun = threading.Event()
    inner = []

    def wait_for_the_other():
        inner.append(second.submit(fn, begun))
        inner[0].result()

    result = first.submit(wait_for_the_other)
    with interrupted(begun):
        result.result()
    assert isinstance(result.exception(), Cancelled)
    assert isinstance(inner[0].exception(LIMIT_S / 2), Cancelled)
    assert [worker.submit(int).result(LIMIT_S / 2) for worker in workers] == [0, 0]


def test_work_that_somebody_else_queued_before_an_interrupt_runs_in_order(workers, short_grace):
    ran = []
    begun = threading.Event()
    result = workers[0].submit(sleep, begun)
    others = [workers[0].submit(ran.append, i) for i in range(5)]
    with interrupted(begun):
        result.result()
    collect(others, timeout=LIMIT_S / 2)
    assert ran == [0, 1, 2, 3, 4]


def test_a_second_interrupt_does_not_leave_the_worker_with_work_that_cannot_be_stopped(
    workers, monkeypatch
):
    monkeypatch.setattr(workers_of_devices, "GRACE_S", LIMIT_S)
    begun = threading.Event()
    result = workers[0].submit(sleep, begun)
    stopping = threading.Event()
    monkeypatch.setattr(workers[0], "cancel", lambda _: stopping.set())
    interrupt_after(stopping)
    with interrupted(begun):
        result.result()
    monkeypatch.undo()
    assert workers[0].submit(lambda: "usable").result(LIMIT_S / 2) == "usable"


def test_ten_interrupts_of_loops_leave_no_thread_behind(workers):
    threads = set()
    for _ in range(10):
        begun = threading.Event()
        jobs = [worker.submit(spin, begun) for worker in workers]
        with interrupted(begun):
            collect(jobs)
        threads |= {worker.submit(threading.current_thread).result() for worker in workers}
    assert len(threads) == 2


def exit_status_of_child(work):
    """Fork, let the child do `work`, and return 0 when it was done and true."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_can_use_the_devices_and_so_can_its_parent_afterwards(workers):
    def work():
        values = [worker.submit(lambda: torch.ones(3) @ torch.ones(3)) for worker in workers]
        return collect(values, timeout=LIMIT_S) == [3, 3]

    assert work()
    assert exit_status_of_child(work) == 0
    assert work()


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_forked_child_of_a_worker_is_no_worker(workers):
    go = threading.Event()

    def work():
        return run(workers[0], threading.get_ident) != threading.get_ident() and not ran

    ran = []
    job = workers[0].submit(lambda: go.wait(LIMIT_S) and exit_status_of_child(work))
    behind = workers[0].submit(ran.append, "in the parent only")
    go.set()
    assert job.result(LIMIT_S) == 0
    behind.result(LIMIT_S)
    assert ran == ["in the parent only"]


def module_level_locks():
    modules = [module for name, module in sys.modules.items() if name.startswith("mpcourse.")]
    values = [value for module in modules for value in vars(module).values()]
    kinds = type(threading.Lock()), type(threading.RLock())
    return [value for value in values if isinstance(value, kinds)]


def step_in_a_child_that_was_forked_while_all_locks_were_held():
    devices = get_devices(2)
    stages = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.Linear(4, 4)]
    pipeline = Pipeline(stages, devices, num_microbatches=2, recompute=True)
    batch = torch.ones(4, 4), torch.ones(4, 4), nn.MSELoss()
    pipeline.step(*batch)
    locks = {id(lock): lock for lock in module_level_locks()}
    locks |= {id(device.worker._lock): device.worker._lock for device in devices}
    held, forked = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks.values():
                stack.enter_context(lock)
            held.set()
            forked.wait(2 * LIMIT_S)

    threading.Thread(target=hold, daemon=True).start()
    held.wait(LIMIT_S)
    try:
        assert exit_status_of_child(lambda: torch.isfinite(pipeline.step(*batch))) == 0
    finally:
        forked.set()
    assert len(locks) >= 2 + 5
    assert torch.isfinite(pipeline.step(*batch))


@needs_fork
def test_a_lock_that_another_thread_holds_at_a_fork_is_free_in_the_child(monkeypatch):
    # In a process of its own, without GPUs: where autograd has threads, torch refuses a backward in
    # any child.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    own = multiprocessing.get_context("spawn").Process(
        target=step_in_a_child_that_was_forked_while_all_locks_were_held
    )
    own.start()
    own.join(4 * LIMIT_S)
    assert own.exitcode == 0


def test_work_that_never_ends_does_not_keep_the_interpreter_from_leaving():
    script = """
import threading, time, torch
from mpcourse.devices.devices import get_devices

begun = threading.Barrier(4)

def loop():
    begun.wait()
    while True:
        pass

def compute():
    x = torch.rand(300, 300)
    begun.wait()
    while True:
        x @ x

devices = get_devices(3)
for device, fn in zip(devices, (loop, compute, compute)):
    device.submit(fn)
    device.submit(print, "queued behind it: never runs")
begun.wait()
"""
    assert python(script) is None


def test_work_that_runs_when_the_interpreter_leaves_may_end():
    script = """
import time
from mpcourse.devices.workers import Worker

Worker("device 0").submit(lambda: time.sleep(0.2) or print('"ended"', flush=True))
"""
    assert python(script) == "ended"
