"""One thread per device that runs, in order, the work it is handed.

Pages `start_here` and `parallel_apply`.

Handing work over returns at once with a `Result`; asking the `Result` for its value waits. That is
how a GPU behaves too (a call queues a kernel, synchronizing waits), so the pages read the same with
and without one. The threads are our own, because those of a `concurrent.futures` pool cannot be
told to stop and keep the interpreter from leaving.
"""

import atexit
import ctypes
import functools
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from mpcourse.devices.locks import fork_safe_lock
from mpcourse.devices.streams import StreamContext

POLL_S = 0.2  # how often a wait looks up: Windows cannot interrupt a thread that waits for a lock
GRACE_S = 2.0  # how long a cancelled job may take to end before its thread is given up

_here = threading.local()  # .thread: the worker's thread that is running, in that thread only
_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()


class Cancelled(BaseException):
    """Raised in a job that was cancelled; no `Exception`, so that jobs let it pass."""


class Result(Future):
    """What a worker computes, or will have computed: a `concurrent.futures.Future`.

    Its wait can be interrupted, and workers that wait for each other do not deadlock.
    """

    def __init__(
        self, worker: "Worker", job: Callable[[], Any], around: AbstractContextManager
    ) -> None:
        super().__init__()
        self.worker = worker
        self.job = job, around
        self.from_worker = _this_thread() is not None
        self.cancel_asked = False

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the work and return its value, or raise its exception.

        A worker that waits for another one runs what workers hand it meanwhile, so two workers that
        wait for each other both go on; work from elsewhere keeps its turn. An interrupt (Ctrl-C,
        the stop button) cancels the work; after `timeout` seconds, a TimeoutError, it goes on.
        """
        try:
            return _values([self], timeout, (KeyboardInterrupt, Cancelled))[0]
        finally:
            del self  # break the cycle error -> traceback -> frame -> self

    def wait(self, deadline: float | None) -> None:
        """Return when the work has ended or the deadline has passed, whichever comes first."""
        thread = _this_thread()
        if thread is not None:
            self.add_done_callback(lambda _: thread.wake())
            # what stands before our own work in our own queue has to run first
            in_turn = self.worker.is_here() and not self.from_worker
            thread.serve_until(self.done, deadline, in_turn=in_turn)
            return
        while not self.done() and (left := _time_left(deadline)) > 0:
            with suppress(TimeoutError, CancelledError):
                self.exception(left)

    def settle(self, error: BaseException) -> None:
        """Keep `error` as the outcome, unless there is one."""
        with suppress(InvalidStateError):
            self.set_exception(error)

    def wait_stream(self) -> None:
        """Make the caller's stream wait for this job's, also after a failure."""
        with suppress(RuntimeError):  # a GPU that refuses everything has failed the job already
            self.worker.context.wait_stream()


def collect(results: Iterable[Result], timeout: float | None = None) -> list[Any]:
    """Wait for all the work, then return its values or raise the first failure.

    Nothing is left running behind a failure: every job has ended when it is raised. An interrupt,
    or a timeout, cancels all of them.

    Args:
        results: What `submit` returned; the order of the values is theirs.
        timeout: Seconds for all of them together; `None` waits until they end.
    """
    results = list(results)
    try:
        return _values(results, timeout, (KeyboardInterrupt, Cancelled, TimeoutError))
    finally:
        del results  # as in `Result.result`


_one_hand_over = fork_safe_lock()


def run_together(jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Hand over all the jobs, (worker, function, *arguments), wait, and return their values.

    They may wait for one another. Whoever else calls this, in whichever worker: each worker gets
    all jobs of one call, then those of the other, and a job above a waiting one is younger. So none
    waits for one that stands below it.
    """
    handed: list[Result] = []
    try:
        with _one_hand_over:
            for worker, fn, *args in jobs:
                handed.append(worker.enqueue(fn, *args))
    except BaseException:  # an interrupt between two hand-overs
        cancel(handed)
        raise
    try:
        return collect(handed)
    finally:
        del handed  # as in `Result.result`


def _values(results: list[Result], timeout: float | None, cancelling: tuple) -> list[Any]:
    """Wait for all results and take their values; an error in `cancelling` cancels the work."""
    deadline = None if timeout is None else time.monotonic() + timeout
    values, result = [], None
    try:
        with shield():
            try:
                for result in results:
                    result.wait(deadline)
                    if not result.done():
                        name = result.worker.name
                        raise TimeoutError(f"{name} is still at work after {timeout} s")
            except cancelling:
                cancel(results)
                raise
            for result in results:
                result.wait_stream()  # before one of them raises
            for result in results:
                values.append(Future.result(result))
                result.worker.context.record_stream(values[-1])
            return values
    finally:
        del results, result, values  # as in `Result.result`


def cancel(results: Iterable[Result]) -> None:
    """Cancel all the work, wait up to two seconds for its end, and leave the workers usable."""
    results = list(results)
    for result in results:
        result.worker.cancel(result)
    deadline = time.monotonic() + GRACE_S
    try:
        while time.monotonic() < deadline and not all(result.done() for result in results):
            time.sleep(0.005)
    finally:  # also when a second interrupt comes while this waits
        for result in results:
            result.worker.give_up(result)
        for result in results:
            result.wait_stream()  # what it has queued on a GPU goes on


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception once; one that takes no notes (a frozen one) stays as it is."""
    if note not in getattr(error, "__notes__", ()):  # it has it when it came through a wait
        with suppress(Exception):
            error.add_note(note)


class Worker:
    """Owns one device and runs the jobs it is handed, first in, first out, one at a time."""

    def __init__(self, name: str, context: StreamContext | None = None) -> None:
        self.name = name
        self.context = context or StreamContext()
        self.thread: _Thread | None = None  # started by the first job
        self._lock = fork_safe_lock()
        _workers.add(self)

    def is_here(self) -> bool:
        """Whether the caller runs in this worker's thread."""
        return self.thread is not None and _this_thread() is self.thread

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Result:
        """Hand `fn(*args, **kwargs)` to the worker and return at once with its `Result`.

        Work that a worker hands to itself runs before `submit` returns: nobody else could run it.
        """
        if not self.is_here():
            return self.enqueue(fn, *args, **kwargs)
        with shield():
            result = self._result(fn, args, kwargs)
            self.thread.serve(result)
            return result

    def enqueue(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Result:
        """Like `submit`, but what is for the caller's own worker runs when the caller waits."""
        with shield():
            result = self._result(fn, args, kwargs)
            with self._lock:
                if self.thread is None:
                    self.thread = self._start()
                self.thread.queue.put(result)
            return result

    def _result(self, fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Result:
        if not callable(fn):
            raise TypeError(f"a worker runs functions; got {type(fn).__name__}")
        around = self.context.around_job((fn, args, kwargs))
        return Result(self, functools.partial(fn, *args, **kwargs), around)

    def wake(self) -> None:
        """Make a job of this worker look whether what it waits for in `wait_until` is true."""
        thread = self.thread
        if thread is not None:
            thread.wake()

    def cancel(self, result: Result) -> None:
        """Take `result` off the queue, or cancel it where it runs."""
        thread = self.thread
        if not result.cancel() and thread is not None:
            thread.cancel(result)

    def give_up(self, result: Result) -> None:
        """Leave a job that cannot be stopped (it sits in C code) to its thread, and go on without.

        The next job gets a new thread; what was queued moves there.
        """
        if result.done():
            return
        result.settle(Cancelled())
        with self._lock:
            if self.thread is None or result not in self.thread.running:
                return
            self.thread.close()
            waiting = self.thread.take_all()
            self.thread = self._start() if waiting else None
            for other in waiting:
                self.thread.queue.put(other)

    def _start(self) -> "_Thread":
        thread = _Thread(self.name)
        first = Result(self, self.context.set_up, nullcontext())
        thread.queue.put(first)
        try:
            with self.context.starting():
                thread.start()
                Future.result(first)  # the plain wait: `set_up` is short; its error comes out here
        except BaseException:
            thread.close()
            raise
        return thread


def wait_until(ready: Callable[[], bool]) -> None:
    """In a job: wait until `ready()`, and run meanwhile what other workers hand to this one.

    Whoever makes it true calls `wake` of this worker.
    """
    thread = _here.thread
    exposed = thread.expose(None)  # as `shield`, without its calls: every wait of a step pays them
    try:
        thread.serve_until(ready)
    finally:
        thread.expose(exposed)
    thread.heed_cancel()


class _Thread(threading.Thread):
    """The thread of a worker, with its queue.

    `Cancelled` is raised from outside, between any two lines: in our own code it could lose a job
    or leave a lock behind. So it is raised only while `exposed`, the code of a job, runs.
    """

    def __init__(self, name: str) -> None:
        # daemon: work that never ends must not keep the interpreter from leaving
        super().__init__(name=f"mpcourse {name}", daemon=True)
        self.queue: queue.SimpleQueue[Result | None] = queue.SimpleQueue()  # None only wakes
        self.later: deque[Result] = deque()  # taken from the queue before it was their turn
        self.running: list[Result] = []  # a stack: work that waits has other work served above it
        self.exposed: Result | None = None
        self.closing = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serve until told to close; this is the thread."""
        _here.thread = self
        self.serve_until(lambda: self.closing, in_turn=True, poll_s=None)

    def serve_until(
        self,
        ready: Callable[[], bool],
        deadline: float | None = None,
        *,
        in_turn: bool = False,
        poll_s: float | None = POLL_S,
    ) -> None:
        """Run jobs until `ready()` or the deadline; the job that waits may be cancelled.

        Unless `in_turn`, below a job that waits, only what a worker handed over is run: that worker
        may be what the job waits for. All else, handed over after the job, runs after it. It is
        one loop: every wait of a pipeline would pay for calls within it.
        """
        left = poll_s
        while not ready():
            if deadline is not None and (left := _time_left(deadline)) <= 0:
                return
            if in_turn and self.later:
                result = self.later.popleft()
            else:
                try:
                    result = self.queue.get(timeout=left)
                except queue.Empty:
                    result = None
            if result is not None and (in_turn or result.from_worker):
                self.serve(result)
            elif result is not None:
                self.later.append(result)
            del result  # as in `serve`, whose frame has this one behind it
            self.heed_cancel()

    def serve(self, result: Result) -> None:
        """Run one job, above those that wait, and keep its value or its exception."""
        (job, around), result.job = result.job, None  # a kept Result must not keep the inputs too
        self.running.append(result)
        try:
            if result.set_running_or_notify_cancel():
                with around:
                    value = self._call(result, job)
                result.set_result(value)
        except BaseException as error:
            try:
                add_note(error, f"raised in the worker of {result.worker.name}")
            finally:  # whatever the error's class does: nobody may wait for ever
                result.settle(error)
        finally:
            self.running.pop()
            del result, job, around  # break the cycle error -> traceback -> frame -> inputs

    def _call(self, result: Result, job: Callable[[], Any]) -> Any:
        """Call the job of `result`; here, and only here, `Cancelled` may come at any line."""
        try:
            self.expose(result)
            self.heed_cancel()
            return job()
        finally:
            del result, job  # as in `serve`
            self.expose(None)  # what has been raised by then comes out before this ends

    def expose(self, result: Result | None) -> Result | None:
        """Say in which job `Cancelled` may be raised from now on; return the one before."""
        with self._lock:
            before, self.exposed = self.exposed, result
        return before

    def cancel(self, result: Result) -> None:
        """Raise `Cancelled` in the job of `result`: now if its code runs, else when it heeds it."""
        with self._lock:
            if result.cancel_asked:
                return
            result.cancel_asked = True
            if result is self.exposed:
                thread_id = ctypes.c_ulong(self.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(Cancelled))
        self.wake()

    def heed_cancel(self) -> None:
        """Raise `Cancelled` if the top job was cancelled while its code did not run."""
        if self.running and self.running[-1].cancel_asked:
            raise Cancelled

    def wake(self) -> None:
        """Make the thread look up from waiting; any thread may call this."""
        self.queue.put(None)

    def close(self) -> None:
        """Let the thread end after the job it is running."""
        self.closing = True
        self.wake()

    def take_all(self) -> list[Result]:
        """Take what has not begun off the queue, in order."""
        taken, self.later = list(self.later), deque()
        with suppress(queue.Empty):
            while True:
                taken.append(self.queue.get_nowait())
        return [result for result in taken if result is not None]


class shield:
    """Keep `Cancelled` out of the waiting of a job: raised anywhere in it, it could leave a lock.

    It comes out at the end of the block, or where the block heeds it.
    """

    def __enter__(self) -> None:
        self._thread = _this_thread()
        if self._thread is not None:
            self._exposed = self._thread.expose(None)

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.expose(self._exposed)
            self._thread.heed_cancel()


def on_a_worker() -> bool:
    """Whether this thread is a worker's: others may run beside it."""
    return _this_thread() is not None


def _this_thread() -> _Thread | None:
    """The worker's thread that is running, None in any other thread."""
    return getattr(_here, "thread", None)


def _time_left(deadline: float | None) -> float:
    """For how many seconds to wait before looking up."""
    return POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())


def _close_all() -> None:
    """Let running work end, then cancel it: torch aborts a process that leaves in its midst."""
    threads = [thread for thread in threading.enumerate() if isinstance(thread, _Thread)]
    for thread in threads:
        thread.close()
    for _ in range(2):
        for thread in threads:
            thread.join(GRACE_S / len(threads))
        for thread in threads:
            for result in list(thread.running):
                thread.cancel(result)


def _forget_threads() -> None:
    """A forked child has the workers but not their threads: it starts its own at first use."""
    vars(_here).clear()  # the child of a worker's thread is no worker
    for worker in _workers:
        worker.thread = None


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
