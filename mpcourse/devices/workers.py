"""One thread per device that runs, in order, the work it is handed.

Pages `start_here` and `parallel_apply`.

Handing work over returns at once with a `Result`; asking the `Result` for its value waits. That is
how a GPU behaves too (a call queues a kernel, synchronizing waits), so the pages read the same with
and without one. The threads are our own, because those of a `concurrent.futures` pool cannot be
told to stop and keep the interpreter from leaving.
"""

import atexit
import functools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mpcourse.devices.lanes import Lane
from mpcourse.devices.results import GRACE_S, Result
from mpcourse.devices.serving import Server, Stopped, here, shield, this_server

_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()


class Worker:
    """Owns one device and runs the jobs it is handed, first in, first out, one at a time.

    Args:
        name: The device's name, for errors and for the thread.
        lane: How work gets onto the device and off it.
    """

    def __init__(self, name: str, lane: Lane) -> None:
        self.name = name
        self.lane = lane
        self.server: Server | None = None
        self._lock = threading.Lock()
        _workers.add(self)

    def is_here(self) -> bool:
        """Whether the caller runs in this worker's thread."""
        return self.server is not None and this_server() is self.server

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
                own = this_server() is self.server
                if not own:
                    self.server.hand_over(result)
            if own:
                self.server.serve(result)
            return result

    def _start(self) -> Server:
        server = Server(self.name)
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
                self.server.hand_over(job)


def _close_all() -> None:
    """Let running work end, then stop it: torch aborts a process that leaves in its midst."""
    servers = [thread for thread in threading.enumerate() if isinstance(thread, Server)]
    for server in servers:
        server.close()
    _join(servers)
    for server in servers:
        for result in list(server.running):
            server.stop(result)
    _join(servers)


def _join(servers: list[Server]) -> None:
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
