"""One thread per device that runs, in order, the work it is handed (pages 00 and 02).

Handing work over returns at once with a `Result`; asking the `Result` for its value waits. That is
how a GPU behaves too (a call queues a kernel, synchronizing waits), so the pages read the same with
and without one. The threads are our own, because those of a `concurrent.futures` pool cannot be
told to stop and keep the interpreter from leaving.
"""

import atexit
import contextlib
import ctypes
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from mpcourse.results import GRACE_S, Result, Stopped, here

if TYPE_CHECKING:
    from mpcourse.lanes import Lane

_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()


class _Server(threading.Thread):
    """The thread behind a worker, with its queue."""

    def __init__(self, name: str) -> None:
        # daemon: work that never ends must not keep the interpreter from leaving
        super().__init__(name=f"mpcourse {name}", daemon=True)
        self.jobs: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self.running: list[Result] = []  # a stack: work that waits has other work served above it
        self.closing = False
        self._lock = threading.Lock()

    def run(self) -> None:
        here.server = self
        while not self.closing:
            with contextlib.suppress(Stopped):  # came late: its job has ended
                self.serve_one()

    def serve_one(self, timeout: float | None = None) -> None:
        """Run the next job that comes within `timeout` seconds."""
        with contextlib.suppress(queue.Empty):
            result = self.jobs.get(timeout=timeout)
            if result is not None:
                self.serve(result)

    def serve(self, result: Result) -> None:
        with self._lock:
            self.running.append(result)
        try:
            result.run()
            with self._lock:
                self.running.remove(result)
        except Stopped as error:  # came between two lines of run
            result.settle(error)
            with self._lock, contextlib.suppress(ValueError):
                self.running.remove(result)

    def stop(self, result: Result) -> None:
        """Raise `Stopped` in the job `result`, if it is running here."""
        with self._lock:
            if result.stop_asked or result not in self.running:
                return
            result.stop_asked = True
            if result is self.running[-1]:  # if not, `heed_stop` sees to it
                thread_id = ctypes.c_ulong(self.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(Stopped))

    def heed_stop(self) -> None:
        """Raise `Stopped` if the top job was told to stop while another was served above it."""
        if self.running and self.running[-1].stop_asked:
            raise Stopped


class Worker:
    """Owns one device and runs the jobs it is handed, first in, first out, one at a time.

    Args:
        name: The device's name, for errors and for the thread.
        lane: How work gets onto the device and off it.
    """

    def __init__(self, name: str, lane: "Lane") -> None:
        self.name = name
        self.lane = lane
        self._server: _Server | None = None
        self._lock = threading.Lock()
        _workers.add(self)

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Result:
        """Hand `fn(*args, **kwargs)` to the worker and return at once with its `Result`.

        Work that a worker hands to itself runs before `submit` returns: nobody else could run it.
        """
        if not callable(fn):
            raise TypeError(f"a worker runs functions; got {type(fn).__name__}")
        around = self.lane.hand_in((args, kwargs))

        def job() -> Any:
            with around:
                return fn(*args, **kwargs)

        result = Result(self, job)
        server = self._started()
        if getattr(here, "server", None) is server:
            result.run()
            server.heed_stop()
        else:
            server.jobs.put(result)
        return result

    def _started(self) -> _Server:
        with self._lock:
            if self._server is None:
                self._server = self._start()
            return self._server

    def _start(self) -> _Server:
        server = _Server(self.name)
        with self.lane.starting():
            server.start()
            first = Result(self, self.lane.enter)
            server.jobs.put(first)
            Future.result(first)  # the plain wait: `enter` is short, and its error comes out here
        return server

    def stop(self, result: Result) -> None:
        """Take `result` off the queue, or stop it where it runs."""
        server = self._server
        if not result.cancel() and server is not None:
            server.stop(result)

    def give_up(self, result: Result) -> None:
        """Leave a job that cannot be stopped (it sits in C code) to its thread, and go on without.

        The next job gets a new thread; what was queued moves there.
        """
        server = self._server
        if server is None or result.done() or result not in server.running:
            return
        with self._lock:
            self._server = None
        result.settle(Stopped())
        self.close(server)
        while not server.jobs.empty():
            waiting = server.jobs.get()
            if waiting is not None:
                self._started().jobs.put(waiting)

    @staticmethod
    def close(server: _Server) -> None:
        """Let a server's thread end after the job it is running."""
        server.closing = True
        server.jobs.put(None)


def _close_all() -> None:
    servers = [worker._server for worker in _workers if worker._server is not None]
    for server in servers:
        Worker.close(server)
    for server in servers:
        server.join(GRACE_S / len(servers))


def _forget_threads() -> None:
    """A forked child has the workers but not their threads: it starts its own at first use."""
    for worker in _workers:
        worker._server = None
        worker._lock = threading.Lock()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
