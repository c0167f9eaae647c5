"""One thread per device that runs, in order, the work it is handed.

Pages `start_here` and `parallel_apply`.

Handing work over returns at once with a `Result`; asking the `Result` for its value waits. That is
how a GPU behaves too (a call queues a kernel, synchronizing waits), so the pages read the same with
and without one. The threads are our own, because those of a `concurrent.futures` pool cannot be
told to stop and keep the interpreter from leaving.
"""

import atexit
import contextlib
import ctypes
import functools
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from mpcourse.devices.results import GRACE_S, Result, Stopped, here, shield

if TYPE_CHECKING:
    from mpcourse.devices.lanes import Lane

_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()


class _Server(threading.Thread):
    """The thread behind a worker, with its queue.

    `Stopped` is raised from outside, between any two lines: in our own code it could lose a job or
    leave a lock behind. So it is raised only while `exposed`, the code of a job, runs.
    """

    def __init__(self, name: str) -> None:
        # daemon: work that never ends must not keep the interpreter from leaving
        super().__init__(name=f"mpcourse {name}", daemon=True)
        self.jobs: queue.SimpleQueue[Result | None] = queue.SimpleQueue()  # None only wakes
        self.later: deque[Result] = deque()  # taken from `jobs` before it was their turn
        self.running: list[Result] = []  # a stack: work that waits has other work served above it
        self.exposed: Result | None = None
        self.closing = False
        self._lock = threading.Lock()

    def run(self) -> None:
        here.server = self
        while not self.closing:
            self.serve_one()

    def serve_one(self, timeout: float | None = None, *, in_turn: bool = True) -> None:
        """Run the next job that comes within `timeout` seconds.

        Args:
            timeout: In seconds; `None` waits for one.
            in_turn: Whether all work is served, first in, first out. A job that waits lets in only
                what a worker handed over: that worker may be what it waits for. All else would run
                before the job has ended, though it was handed over after it.
        """
        if in_turn and self.later:
            self.serve(self.later.popleft())
            return
        with contextlib.suppress(queue.Empty):
            result = self.jobs.get(timeout=timeout)
            if result is not None and (in_turn or result.from_worker):
                self.serve(result)
            elif result is not None:
                self.later.append(result)

    def serve(self, result: Result) -> None:
        self.running.append(result)
        result.run()
        self.running.pop()

    def call(self, result: Result, job: Callable[[], Any]) -> Any:
        """Call the job of `result`; here, and only here, `Stopped` may come at any line."""
        try:
            self._expose(result)
            self.heed_stop()
            return job()
        finally:
            del result, job  # as in Result.run
            self._expose(None)  # what has been raised by then comes out before this ends

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Let `Stopped` wait until the end of the block, or until the block heeds it."""
        exposed = self.exposed
        self._expose(None)
        try:
            yield
        finally:
            self._expose(exposed)
            self.heed_stop()

    def _expose(self, result: Result | None) -> None:
        with self._lock:
            self.exposed = result

    def stop(self, result: Result) -> None:
        """Raise `Stopped` in the job `result`: now if its code runs, else when it heeds it."""
        with self._lock:
            if result.stop_asked:
                return
            result.stop_asked = True
            if result is self.exposed:
                thread_id = ctypes.c_ulong(self.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(Stopped))
        self.jobs.put(None)

    def heed_stop(self) -> None:
        """Raise `Stopped` if the top job was told to stop while its code did not run."""
        if self.running and self.running[-1].stop_asked:
            raise Stopped

    def close(self) -> None:
        """Let the thread end after the job it is running."""
        self.closing = True
        self.jobs.put(None)

    def take_all(self) -> list[Result]:
        """Take the work that has not begun off the queue, in order."""
        taken, self.later = list(self.later), deque()
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self.jobs.get_nowait())
        return [result for result in taken if result is not None]


class Worker:
    """Owns one device and runs the jobs it is handed, first in, first out, one at a time.

    Args:
        name: The device's name, for errors and for the thread.
        lane: How work gets onto the device and off it.
    """

    def __init__(self, name: str, lane: "Lane") -> None:
        self.name = name
        self.lane = lane
        self.server: _Server | None = None
        self._lock = threading.Lock()
        _workers.add(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Result:
        """Hand `fn(*args, **kwargs)` to the worker and return at once with its `Result`.

        Work that a worker hands to itself runs before `submit` returns: nobody else could run it.
        """
        if not callable(fn):
            raise TypeError(f"a worker runs functions; got {type(fn).__name__}")
        with shield():
            around = self.lane.hand_in((args, kwargs))
            result = Result(self, functools.partial(fn, *args, **kwargs), around)
            with self._lock:
                if self.server is None:
                    self.server = self._start()
                own = getattr(here, "server", None) is self.server
                if not own:
                    self.server.jobs.put(result)
            if own:
                self.server.serve(result)
            return result

    def _start(self) -> _Server:
        server = _Server(self.name)
        first = Result(self, self.lane.enter)
        server.jobs.put(first)
        try:
            with self.lane.starting():
                server.start()
                Future.result(first)  # the plain wait: `enter` is short; its error comes out here
        except BaseException:
            server.close()
            raise
        return server

    def stop(self, result: Result) -> None:
        """Take `result` off the queue, or stop it where it runs."""
        server = self.server
        if not result.cancel() and server is not None:
            server.stop(result)

    def give_up(self, result: Result) -> None:
        """Leave a job that cannot be stopped (it sits in C code) to its thread, and go on without.

        The next job gets a new thread; what was queued moves there.
        """
        if result.done():
            return
        result.settle(Stopped())
        with self._lock:
            if self.server is None or result not in self.server.running:
                return
            self.server.close()
            waiting = self.server.take_all()
            self.server = self._start() if waiting else None
            for job in waiting:
                self.server.jobs.put(job)


def _close_all() -> None:
    """Let running work end, then stop it: torch aborts a process that leaves in its midst."""
    servers = [thread for thread in threading.enumerate() if isinstance(thread, _Server)]
    for server in servers:
        server.close()
    _join(servers)
    for server in servers:
        for result in list(server.running):
            server.stop(result)
    _join(servers)


def _join(servers: list[_Server]) -> None:
    for server in servers:
        server.join(GRACE_S / len(servers))


def _forget_threads() -> None:
    """A forked child has the workers but not their threads: it starts its own at first use."""
    vars(here).clear()  # the child of a worker's thread is no worker
    for worker in _workers:
        worker.server = None
        worker._lock = threading.Lock()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
