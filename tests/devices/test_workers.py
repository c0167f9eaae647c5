"""One thread per device: in order, beside the others; a value or an error comes out."""

import gc
import operator
import threading
import time
import traceback
import weakref
from concurrent.futures import CancelledError, Future

import pytest
import torch
from working import LIMIT_S, python, run, wait_for

from mpcourse.devices.streams import CpuCore, StreamContext
from mpcourse.devices.workers import collect


def test_a_worker_uses_the_processor_time_of_one_thread(make_workers):
    def processor_times():
        a = torch.rand(700, 700)
        a @ a
        start = time.process_time(), time.thread_time()
        for _ in range(20):
            a @ a
        return time.process_time() - start[0], time.thread_time() - start[1]

    process_s, thread_s = run(*make_workers(1, CpuCore), processor_times)
    assert process_s < 1.4 * thread_s


def test_a_caller_that_has_not_computed_yet_and_later_threads_keep_the_default():
    script = """
import json, threading, torch
from mpcourse.devices.devices import as_devices

def in_new_thread(fn=torch.get_num_threads):
    counts = []
    thread = threading.Thread(target=lambda: counts.append(fn()))
    thread.start()
    thread.join()
    return counts[0]

in_new_thread(lambda: torch.set_num_threads(3))  # the default of all that have not computed yet
first, second = as_devices(["cpu", "cpu"])
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


def test_what_cannot_be_called_is_refused(workers):
    with pytest.raises(TypeError, match="a worker runs functions; got int"):
        workers[0].submit(3)


def test_a_thread_that_cannot_be_set_up_says_so_and_can_be_tried_again(make_workers):
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


def test_work_runs_first_in_first_out(workers):
    order = []
    collect([workers[0].submit(order.append, i) for i in range(200)])
    assert order == list(range(200))


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


def test_two_workers_work_at_the_same_time(workers):
    together = threading.Barrier(2)  # passes only when both are at work
    jobs = [worker.submit(together.wait, LIMIT_S) for worker in workers]
    assert sorted(collect(jobs)) == [0, 1]


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


def test_work_that_a_worker_hands_to_itself_runs_at_once(workers):
    def outer():
        inner = workers[0].submit(threading.get_ident)
        return inner.done(), inner.result() == threading.get_ident()

    assert run(workers[0], outer) == (True, True)


@pytest.mark.usefixtures("no_looking_up")
@pytest.mark.parametrize("depth", [1, 2, 25])
def test_workers_that_call_each_other_in_turn_finish(workers, depth):
    def call(left):
        if left == 0:
            return []
        answer = workers[left % 2].submit(call, left - 1).result()
        return [left % 2, *answer]

    assert run(workers[0], call, depth) == [left % 2 for left in range(depth, 0, -1)]


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


def test_a_plain_future_can_wait_for_a_worker_too(workers):
    result = workers[0].submit(int, "3")
    assert Future.result(result, timeout=LIMIT_S) == 3


def test_a_timeout_names_the_device_and_the_work_goes_on(workers):
    go = threading.Event()
    result = workers[0].submit(lambda: go.wait(LIMIT_S) and "value")
    with pytest.raises(TimeoutError, match=r"device 0 \(test \d+\) is still at work after 0.01 s"):
        result.result(timeout=0.01)
    go.set()
    assert result.result(timeout=LIMIT_S) == "value"


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


class Input:
    """Something that can be watched while it is forgotten."""


def fail(*_, **__):
    raise KeyError("lost")


@pytest.mark.parametrize("fn", [lambda *_, **__: "value", fail], ids=["ends", "fails"])
def test_the_inputs_of_work_are_freed_when_it_has_ended(workers, fn):
    one, other = Input(), Input()
    watched = [weakref.ref(one), weakref.ref(other)]
    result = workers[0].submit(fn, one, other=other)
    del one, other
    failure = type(result.exception(LIMIT_S))
    if failure is KeyError:
        del result  # the error's traceback has them
    workers[0].submit(int).result()  # the worker has put the job down
    gc.collect()
    assert [reference() for reference in watched] == [None, None]


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
