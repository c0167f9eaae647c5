"""One thread per device: in order, at the same time as the others, and always usable again."""

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from threads import in_time
from torch.utils.data import DataLoader, TensorDataset

from mpcourse.devices import workers as workers_module
from mpcourse.devices.devices import available_cores, get_devices
from mpcourse.devices.streams import CpuCore, StreamContext
from mpcourse.devices.workers import Cancelled, Worker, cancel, collect

LIMIT_S = 30
REPOSITORY = Path(__file__).resolve().parents[2]

numbers = itertools.count()


@pytest.fixture
def make_workers():
    """A function that makes workers of their own: what a test breaks stays with it."""
    made = []

    def make(count, lane=CpuCore):
        made.extend(Worker(f"device {i} (test {next(numbers)})", lane()) for i in range(count))
        return made[-count:]

    yield make
    for worker in made:
        if worker.thread is not None:
            worker.thread.close()


@pytest.fixture
def workers(make_workers):
    return make_workers(2)


def run(worker, fn, *args):
    return worker.submit(fn, *args).result(LIMIT_S)


def python(script):
    """What a new process prints, as JSON; it must end by itself and without a complaint."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        timeout=4 * LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout) if done.stdout else None


# one thread each


def test_a_worker_computes_with_one_thread_and_its_caller_with_as_many_as_before(workers):
    before = torch.get_num_threads()
    assert [run(worker, torch.get_num_threads) for worker in workers] == [1, 1]
    assert torch.get_num_threads() == before


def test_a_worker_uses_the_processor_time_of_one_thread(workers):
    def processor_times():
        a = torch.rand(700, 700)
        a @ a
        start = time.process_time(), time.thread_time()
        for _ in range(20):
            a @ a
        return time.process_time() - start[0], time.thread_time() - start[1]

    process_s, thread_s = run(workers[0], processor_times)
    assert process_s < 1.4 * thread_s


def test_a_caller_that_has_not_computed_yet_and_later_threads_keep_the_default():
    script = """
import json, threading, torch
from mpcourse.devices.devices import get_devices

def in_new_thread(fn=torch.get_num_threads):
    counts = []
    thread = threading.Thread(target=lambda: counts.append(fn()))
    thread.start()
    thread.join()
    return counts[0]

in_new_thread(lambda: torch.set_num_threads(3))  # the default of all that have not computed yet
first, second = get_devices(2)
counts = {"default": in_new_thread(), "worker": first.run(torch.get_num_threads)}
counts["started by a worker"] = first.run(lambda: second.run(torch.get_num_threads))
counts["caller"] = torch.get_num_threads()
counts["later thread"] = in_new_thread()
print(json.dumps(counts))
"""
    assert python(script) == {
        "default": 3,
        "worker": 1,
        "started by a worker": 1,
        "caller": 3,
        "later thread": 3,
    }


def test_a_worker_keeps_its_thread(workers):
    assert len({run(workers[0], threading.get_ident) for _ in range(3)}) == 1


def test_what_cannot_be_called_is_refused(workers):
    with pytest.raises(TypeError, match="a worker runs functions; got int"):
        workers[0].submit(3)


def test_a_lane_that_cannot_be_entered_says_so_and_can_be_tried_again(make_workers):
    class Shut(StreamContext):
        shut = True

        def set_up(self):
            if self.shut:
                raise OSError("no such device")

    [worker] = make_workers(1, Shut)
    threads = threading.active_count()
    for _ in range(2):
        with pytest.raises(OSError, match="no such device"):
            worker.submit(int)
    worker.context.shut = False
    assert run(worker, int) == 0
    wait_until(lambda: threading.active_count() <= threads + 1)


def wait_until(condition):
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_lane_surrounds_the_work_in_the_worker(make_workers):
    happened = []

    class Noting(StreamContext):
        def around_job(self, arguments):
            happened.append(("around_job", arguments, threading.current_thread()))
            return self

        def __enter__(self):
            happened.append(("before", threading.current_thread()))

        def __exit__(self, *_):
            happened.append(("after", threading.current_thread()))

        def wait_stream(self):
            happened.append(("wait_stream", threading.current_thread()))

        def record_stream(self, value):
            happened.append(("record_stream", value, threading.current_thread()))

    [worker] = make_workers(1, Noting)
    assert run(worker, max, 3, 4) == 4
    me, it = threading.current_thread(), worker.thread
    assert happened == [
        ("around_job", ((3, 4), {}), me),
        ("before", it),
        ("after", it),
        ("wait_stream", me),
        ("record_stream", 4, me),
    ]


# order


def test_work_runs_first_in_first_out(workers):
    order = []
    collect([workers[0].submit(order.append, i) for i in range(200)])
    assert order == list(range(200))


def test_work_that_waits_for_another_worker_does_not_lose_its_place(workers):
    first, second = workers
    order = []

    def second_half(i, first_half):
        first_half.result()
        order.append(i)

    halves = [first.submit(time.sleep, 0.02) for _ in range(5)]
    collect([second.submit(second_half, i, half) for i, half in enumerate(halves)])
    assert order == [0, 1, 2, 3, 4]


def test_two_stages_that_pass_results_on_overlap(workers):
    first, second = workers
    meet = [threading.Barrier(2) for _ in range(3)]

    def stage_0(i):
        if i > 0:
            meet[i - 1].wait(LIMIT_S)  # stage 1 is at work on the one before

    def stage_1(i, previous):
        previous.result()
        if i < 3:
            meet[i].wait(LIMIT_S)

    outputs = [first.submit(stage_0, i) for i in range(4)]
    collect([second.submit(stage_1, i, output) for i, output in enumerate(outputs)])


def test_work_handed_over_during_a_wait_runs_after_the_work_that_waits(workers):
    first, second = workers
    order, waiting, go = [], threading.Event(), threading.Event()
    outer = first.submit(lambda: second.submit(wait_for, waiting, go).result() or order.append(1))
    waiting.wait(LIMIT_S)
    later = first.submit(order.append, 2)
    time.sleep(0.05)
    go.set()
    collect([outer, later], timeout=LIMIT_S)
    assert order == [1, 2]


def wait_for(waiting, go):
    waiting.set()
    go.wait(LIMIT_S)


# at the same time


def test_two_workers_work_at_the_same_time(workers):
    together = threading.Barrier(2)  # passes only when both are at work
    jobs = [worker.submit(together.wait, LIMIT_S) for worker in workers]
    assert sorted(collect(jobs)) == [0, 1]


def test_more_devices_than_cores_are_at_work_at_the_same_time():
    devices = get_devices(available_cores() + 2)
    together = threading.Barrier(len(devices))
    collect([device.submit(together.wait, LIMIT_S) for device in devices])


# workers that wait for workers


def test_work_that_a_worker_hands_to_itself_runs_at_once(workers):
    def outer():
        inner = workers[0].submit(threading.get_ident)
        return inner.done(), inner.result() == threading.get_ident()

    assert run(workers[0], outer) == (True, True)


@pytest.fixture
def no_looking_up(monkeypatch):
    """Let a wait sleep until it is woken."""
    monkeypatch.setattr(workers_module, "POLL_S", 10 * LIMIT_S)


@pytest.mark.usefixtures("no_looking_up")
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 25])
def test_workers_that_call_each_other_in_turn_finish(workers, depth):
    def call(left):
        if left == 0:
            return []
        answer = workers[left % 2].submit(call, left - 1).result()
        return [left % 2, *answer]

    assert run(workers[0], call, depth) == [left % 2 for left in range(depth, 0, -1)]


def test_two_workers_that_wait_for_each_other_both_go_on(workers):
    together = threading.Barrier(2)

    def ask(other):
        together.wait(LIMIT_S)
        return other.submit(threading.get_ident).result()

    threads = [run(worker, threading.get_ident) for worker in workers]
    jobs = [workers[0].submit(ask, workers[1]), workers[1].submit(ask, workers[0])]
    assert collect(jobs, timeout=LIMIT_S) == threads[::-1]


def test_three_workers_that_wait_in_a_circle_go_on(make_workers):
    workers = make_workers(3)
    together = threading.Barrier(3)

    def ask(i, left):
        if left == 3:
            together.wait(LIMIT_S)
        return left and workers[(i + 1) % 3].submit(ask, i + 1, left - 1).result()

    jobs = [worker.submit(ask, i, 3) for i, worker in enumerate(workers)]
    assert collect(jobs, timeout=LIMIT_S) == [0, 0, 0]


def test_a_worker_can_wait_for_work_that_stands_behind_it_in_its_own_queue(workers):
    order, behind, go = [], [], threading.Event()

    def front():
        go.wait(LIMIT_S)
        value = behind[-1].result()
        order.append("front")
        return value

    job = workers[0].submit(front)
    behind += [workers[0].submit(lambda i=i: order.append(i) or i) for i in range(3)]
    go.set()
    assert job.result(LIMIT_S) == 2
    assert order == [0, 1, 2, "front"]


def test_a_worker_can_wait_for_its_own_queue_after_it_waited_for_another(workers):
    first, second = workers
    behind, go = [], threading.Event()

    def front():
        second.submit(go.wait, LIMIT_S).result()
        return [result.result() for result in behind]

    job = first.submit(front)
    behind += [first.submit(lambda i=i: i) for i in range(3)]
    time.sleep(0.05)  # it has looked at its queue by now
    go.set()
    assert job.result(LIMIT_S) == [0, 1, 2]


# stopping: what Python raises in a thread from outside must hit the job and nothing else


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


@pytest.fixture
def undisturbed():
    """Let no other thread run while this one goes on by itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("undisturbed")
def test_a_stop_of_work_that_waits_loses_no_work_that_comes_with_it(workers, monkeypatch):
    monkeypatch.setattr(workers_module, "GRACE_S", 0.1)
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
            spin(LIMIT_S)
        except Cancelled:
            again.append(second.submit(int).result())

    result = first.submit(stubborn)
    begun.wait(LIMIT_S)
    cancel([result])
    assert isinstance(result.exception(LIMIT_S), Cancelled)
    assert again == []


def spin(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@pytest.fixture
def restless(monkeypatch):
    """Let threads take turns as often as they can, and never give one up."""
    monkeypatch.setattr(workers_module, "GRACE_S", LIMIT_S)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


JOBS = {
    "nothing": lambda mine, other: None,
    "a loop": lambda mine, other: spin(random.uniform(0, 1e-4)),
    "a wait": lambda mine, other: other.submit(int).result(),
    "waits": lambda mine, other: collect([other.submit(int) for _ in range(3)]),
    "a wait for itself": lambda mine, other: [mine.submit(int) for _ in range(3)],
    "a call back": lambda mine, other: other.submit(lambda: mine.submit(int).result()).result(),
}


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("kind", JOBS)
def test_200_stops_at_any_time_leave_no_result_undone_and_the_same_thread(workers, kind):
    first, second = workers
    threads = [run(worker, threading.get_ident) for worker in workers]

    def stop_200_times():
        for i in range(200):
            stopped = first.submit(JOBS[kind], first, second)
            kept = [worker.submit(int, "7") for worker in workers]
            while i % 2 and not (stopped.running() or stopped.done()):
                pass
            spin(random.uniform(0, 2e-4))
            cancel([stopped])
            assert stopped.cancelled() or isinstance(stopped.exception(0), Cancelled | None)
            assert collect(kept) == [7, 7]

    in_time(stop_200_times)
    assert [run(worker, threading.get_ident) for worker in workers] == threads


@pytest.mark.usefixtures("restless")
def test_work_that_many_threads_hand_over_all_runs(workers):
    done = []

    def hand_over(n):
        for i in range(100):
            workers[(n + i) % 2].submit(done.append, (n, i))

    threads = [threading.Thread(target=hand_over, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        run(worker, int)
    assert sorted(done) == [(n, i) for n in range(4) for i in range(100)]
    for n in range(4):
        mine = [i for m, i in done if m == n]
        assert [i for i in mine if i % 2] == list(range(1, 100, 2))


def test_work_that_ends_after_it_was_given_up_changes_nothing(workers, monkeypatch):
    monkeypatch.setattr(workers_module, "GRACE_S", 0.1)
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


# other processes, and the end of this one


def exit_status_of_child(work):
    """Fork, let the child do `work`, and return 0 when it was done and true."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_data_loader_with_processes_of_its_own_works_beside_workers(workers):
    run(workers[0], int)
    numbers = TensorDataset(torch.arange(20.0))
    loader = DataLoader(numbers, batch_size=5, num_workers=2)
    sums = [run(workers[i % 2], torch.sum, batch) for i, (batch,) in enumerate(loader)]
    assert sums == [10, 35, 60, 85]


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


def test_a_plain_future_can_wait_for_a_worker_too(workers):
    result = workers[0].submit(int, "3")
    assert Future.result(result, timeout=LIMIT_S) == 3
