"""What a worker owes: a value, an error, or a way out. Nothing hangs, nothing is left running."""

import _thread
import contextlib
import gc
import itertools
import operator
import threading
import time
import traceback
import weakref
from concurrent.futures import CancelledError, Future

import pytest

from mpcourse.devices import workers as workers_module
from mpcourse.devices.streams import StreamContext
from mpcourse.devices.workers import Cancelled, Worker, cancel, collect

LIMIT_S = 30  # how long work goes on that nobody stops

numbers = itertools.count()


@pytest.fixture
def workers():
    """Two workers of their own: what a test breaks stays with it."""
    pair = [Worker(f"device {i} (test {next(numbers)})", StreamContext()) for i in range(2)]
    yield pair
    for worker in pair:
        if worker.thread is not None:
            worker.thread.close()


@pytest.fixture
def short_grace(monkeypatch):
    """Give a job that cannot be stopped up soon: for tests that are not about how long it takes."""
    monkeypatch.setattr(workers_module, "GRACE_S", 0.3)


def spin(begun=None):
    """A Python loop, which can be stopped between any two lines."""
    if begun is not None:
        begun.set()
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        pass


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


# result


def test_submit_returns_at_once_and_result_waits(workers):
    go = threading.Event()
    result = workers[0].submit(lambda: go.wait(LIMIT_S) and "value")
    assert not result.done()
    go.set()
    assert result.result() == "value"


def test_a_result_is_a_future(workers):
    result = workers[0].submit(int)
    assert isinstance(result, Future)
    assert result.exception() is None
    assert result.done()


def test_a_result_can_be_asked_for_many_times(workers):
    result = workers[0].submit(list)
    assert result.result() is result.result()


def test_a_timeout_names_the_device_and_the_work_goes_on(workers):
    go = threading.Event()
    result = workers[0].submit(lambda: go.wait(LIMIT_S) and "value")
    with pytest.raises(TimeoutError, match=r"device 0 \(test \d+\) is still at work after 0.01 s"):
        result.result(timeout=0.01)
    go.set()
    assert result.result(timeout=LIMIT_S) == "value"


def test_a_timeout_of_zero_only_looks(workers):
    go = threading.Event()
    result = workers[0].submit(go.wait, LIMIT_S)
    with pytest.raises(TimeoutError, match="after 0 s"):
        result.result(timeout=0)
    go.set()
    assert result.result() is True
    assert result.result(timeout=0) is True


def test_a_timeout_error_of_the_work_is_passed_on_as_its_own(workers):
    own = TimeoutError("the work's own")

    def fail():
        raise own

    for ask in (lambda r: r.result(timeout=LIMIT_S), lambda r: collect([r], timeout=LIMIT_S)):
        with pytest.raises(TimeoutError) as caught:
            ask(workers[0].submit(fail))
        assert caught.value is own
    assert own.__notes__ == [f"raised in the worker of {workers[0].name}"]


class Picky(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


@pytest.mark.parametrize(
    "error",
    [KeyError("lost"), Picky(code=7), ValueError(), SystemExit(3), KeyboardInterrupt("own")],
)
def test_an_exception_keeps_its_type_and_traceback_and_names_the_device(workers, error):
    def failing_function():
        raise error

    with pytest.raises(type(error)) as caught:
        workers[0].submit(failing_function).result()
    assert caught.value is error
    shown = "".join(traceback.format_exception(error))
    assert "failing_function" in shown
    assert f"raised in the worker of {workers[0].name}" in shown
    assert workers[0].submit(lambda: "usable").result() == "usable"


def test_asking_twice_for_a_failure_names_the_device_once(workers):
    result = workers[0].submit(operator.truediv, 1, 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            result.result()
    assert len(caught.value.__notes__) == 1


def test_a_failure_that_crosses_workers_names_each_of_them_once(workers):
    first, second = workers

    def through_both_twice():
        return second.submit(lambda: first.submit(operator.truediv, 1, 0).result()).result()

    with pytest.raises(ZeroDivisionError) as caught:
        first.submit(through_both_twice).result()
    assert caught.value.__notes__ == [
        f"raised in the worker of {first.name}",
        f"raised in the worker of {second.name}",
    ]


def test_a_keyboard_interrupt_of_the_work_itself_stops_nobody_else(workers):
    go = threading.Event()

    def fail():
        raise KeyboardInterrupt

    other = workers[1].submit(go.wait, LIMIT_S)
    with pytest.raises(KeyboardInterrupt):
        workers[0].submit(fail).result()
    assert not other.done()
    go.set()
    assert other.result() is True


# what a Result keeps


class Input:
    """Something that can be watched while it is forgotten."""


def freed(watched):
    gc.collect()
    return watched() is None


def test_inputs_of_finished_work_are_freed_though_its_result_is_kept(workers):
    one, other = Input(), Input()
    watched = [weakref.ref(one), weakref.ref(other)]
    result = workers[0].submit(lambda *_, **__: "value", one, other=other)
    del one, other
    assert result.result() == "value"
    workers[0].submit(int).result()  # the worker has put the job down
    assert all(map(freed, watched))


def test_inputs_of_failed_work_are_freed_though_its_result_is_kept(workers):
    one = Input()
    watched = weakref.ref(one)
    result = workers[0].submit(operator.getitem, one, 0)  # in C: no line of the traceback has it
    del one
    with pytest.raises(TypeError, match="not subscriptable"):
        result.result()
    workers[0].submit(int).result()
    assert freed(watched)
    assert isinstance(result.exception(), TypeError)


def test_inputs_of_failed_work_are_freed_with_its_result(workers):
    def fail(one):
        raise KeyError("lost")

    one = Input()
    watched = weakref.ref(one)
    with pytest.raises(KeyError, match="lost"):
        workers[0].submit(fail, one).result()
    del one
    workers[0].submit(int).result()
    assert freed(watched)


def test_inputs_of_cancelled_work_are_freed_when_its_turn_has_passed(workers):
    go = threading.Event()
    workers[0].submit(go.wait, LIMIT_S)
    one = Input()
    watched = weakref.ref(one)
    result = workers[0].submit(id, one)
    del one
    assert result.cancel()
    go.set()
    workers[0].submit(int).result()
    assert freed(watched)
    assert result.cancelled()


# collect


def test_values_are_in_the_order_of_the_results_not_of_their_ends(workers):
    go = threading.Event()
    late = workers[0].submit(lambda: go.wait(LIMIT_S) and "late")
    early = workers[1].submit(lambda: go.set() or "early")
    assert collect([late, early]) == ["late", "early"]


def test_results_may_come_from_a_generator_and_be_none_at_all(workers):
    assert collect(worker.submit(int, "3") for worker in workers) == [3, 3]
    assert collect([]) == []


def test_the_first_failure_by_order_is_raised_when_all_work_has_ended(workers):
    first, second = workers

    def fail(error, wait_s):
        time.sleep(wait_s)
        raise error

    jobs = [
        second.submit(int),
        first.submit(fail, KeyError("first by order"), 0.1),
        second.submit(fail, ValueError("first by time"), 0),
        second.submit(time.sleep, 0.3),
    ]
    with pytest.raises(KeyError, match="first by order"):
        collect(jobs)
    assert all(job.done() for job in jobs)


def test_cancelled_work_is_raised_when_all_work_has_ended(workers):
    first, second = workers
    go = threading.Event()
    first.submit(go.wait, LIMIT_S)
    jobs = [first.submit(int), second.submit(lambda: time.sleep(0.2))]
    threading.Timer(0.1, lambda: (jobs[0].cancel(), go.set())).start()
    with pytest.raises(CancelledError):
        collect(jobs)
    assert all(job.done() for job in jobs)


def test_a_timeout_stops_all_work(workers):
    ran = []
    jobs = [worker.submit(spin) for worker in workers] + [workers[0].submit(ran.append, "queued")]
    with pytest.raises(TimeoutError, match=r"device 0 .* is still at work after 0.1 s"):
        collect(jobs, timeout=0.1)
    assert all(job.done() for job in jobs)
    assert [worker.submit(lambda: "usable").result() for worker in workers] == ["usable"] * 2
    assert ran == []


def test_work_that_ends_within_the_timeout_is_not_stopped(workers):
    assert collect([worker.submit(int, "3") for worker in workers], timeout=LIMIT_S) == [3, 3]


# stop and interrupt


@pytest.mark.parametrize("kind", ["loop", "C code"])
def test_an_interrupt_of_result_stops_the_work_and_leaves_the_worker_usable(
    workers, short_grace, kind
):
    begun = threading.Event()
    result = workers[0].submit({"loop": spin, "C code": sleep}[kind], begun)
    with interrupted(begun):
        result.result()
    assert isinstance(result.exception(), Cancelled)
    assert workers[0].submit(lambda: "usable").result(LIMIT_S / 2) == "usable"


@pytest.mark.parametrize("kind", ["loop", "C code"])
def test_an_interrupt_of_collect_stops_all_that_runs_and_all_that_is_queued(
    workers, short_grace, kind
):
    ran = []
    begun = threading.Event()
    jobs = [worker.submit({"loop": spin, "C code": sleep}[kind], begun) for worker in workers]
    jobs += [worker.submit(ran.append, "queued") for worker in workers for _ in range(5)]
    with interrupted(begun):
        collect(jobs)
    assert all(job.done() for job in jobs)
    assert all(job.cancelled() for job in jobs[2:])
    assert [worker.submit(lambda: "usable").result(LIMIT_S / 2) for worker in workers] == [
        "usable"
    ] * 2
    assert ran == []


@pytest.mark.parametrize("kind", ["loop", "C code"])
def test_an_interrupt_reaches_the_work_that_a_worker_waits_for(workers, short_grace, kind):
    first, second = workers
    begun = threading.Event()
    inner = []

    def wait_for_the_other():
        inner.append(second.submit({"loop": spin, "C code": sleep}[kind], begun))
        inner[0].result()

    result = first.submit(wait_for_the_other)
    with interrupted(begun):
        result.result()
    assert isinstance(result.exception(), Cancelled)
    assert isinstance(inner[0].exception(LIMIT_S / 2), Cancelled)
    assert [worker.submit(lambda: "usable").result(LIMIT_S / 2) for worker in workers] == [
        "usable"
    ] * 2


@pytest.mark.parametrize("kind", ["loop", "C code"])
def test_work_that_somebody_else_queued_before_an_interrupt_runs_in_order(
    workers, short_grace, kind
):
    ran = []
    begun = threading.Event()
    result = workers[0].submit({"loop": spin, "C code": sleep}[kind], begun)
    others = [workers[0].submit(ran.append, i) for i in range(5)]
    with interrupted(begun):
        result.result()
    collect(others, timeout=LIMIT_S / 2)
    assert ran == [0, 1, 2, 3, 4]


def test_a_second_interrupt_does_not_leave_the_worker_with_work_that_cannot_be_stopped(
    workers, monkeypatch
):
    monkeypatch.setattr(workers_module, "GRACE_S", LIMIT_S)
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


def test_a_thread_that_was_given_up_ends_with_its_work(workers, short_grace):
    thread = workers[0].submit(threading.current_thread).result()
    begun = threading.Event()
    result = workers[0].submit(lambda: begun.set() or time.sleep(1))
    begun.wait(LIMIT_S)
    cancel([result])
    assert isinstance(result.exception(), Cancelled)
    assert workers[0].submit(threading.current_thread).result() is not thread
    thread.join(LIMIT_S / 2)
    assert not thread.is_alive()


def test_stopping_work_that_has_ended_changes_nothing(workers):
    result = workers[0].submit(lambda: "value")
    assert result.result() == "value"
    cancel([result])
    assert result.result() == "value"
    assert workers[0].submit(lambda: "usable").result() == "usable"


def test_work_that_was_stopped_says_so_to_whoever_else_asks(workers):
    begun = threading.Event()
    result = workers[0].submit(spin, begun)
    begun.wait(LIMIT_S)
    cancel([result])
    for ask in (result.result, lambda: workers[1].submit(result.result).result()):
        with pytest.raises(Cancelled):
            ask()
    assert workers[1].submit(lambda: "usable").result() == "usable"
