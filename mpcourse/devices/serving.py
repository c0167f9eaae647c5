"""The thread behind a worker: it runs jobs in turn, and others while one of them waits.

Page `start_here`.
"""

import contextlib
import ctypes
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

POLL_S = 0.2  # how often a wait looks up: Windows cannot interrupt a thread that waits for a lock

here = threading.local()  # .server: the serving thread, in that thread only


class Stopped(BaseException):
    """Raised in a job that was told to stop; no `Exception`, so that jobs let it pass."""


class Job(Protocol):
    """What a server runs."""

    from_worker: bool
    stop_asked: bool

    def run(self) -> None:
        """Do the work, and keep what comes of it."""


class Server(threading.Thread):
    """The thread behind a worker, with its queue.

    `Stopped` is raised from outside, between any two lines: in our own code it could lose a job or
    leave a lock behind. So it is raised only while `exposed`, the code of a job, runs.
    """

    def __init__(self, name: str) -> None:
        # daemon: work that never ends must not keep the interpreter from leaving
        super().__init__(name=f"mpcourse {name}", daemon=True)
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # None only wakes
        self.later: deque[Job] = deque()  # taken from `jobs` before it was their turn
        self.running: list[Job] = []  # a stack: work that waits has other work served above it
        self.exposed: Job | None = None
        self.closing = False
        self.bell: Callable[[], None] | None = None  # rung when something is handed over
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serve until told to close; this is the thread."""
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
        try:
            result = self.jobs.get(timeout=timeout)
        except queue.Empty:
            return
        if result is not None and (in_turn or result.from_worker):
            self.serve(result)
        elif result is not None:
            self.later.append(result)

    def serve(self, result: Job) -> None:
        """Run one job, above those that wait."""
        self.running.append(result)
        result.run()
        self.running.pop()

    def call(self, result: Job, job: Callable[[], Any]) -> Any:
        """Call the job of `result`; here, and only here, `Stopped` may come at any line."""
        try:
            self.expose(result)
            self.heed_stop()
            return job()
        finally:
            del result, job  # as in Result.run
            self.expose(None)  # what has been raised by then comes out before this ends

    def expose(self, result: Job | None) -> None:
        """Say in which job `Stopped` may be raised from now on, at any line; None: in none."""
        with self._lock:
            self.exposed = result

    def stop(self, result: Job) -> None:
        """Raise `Stopped` in the job `result`: now if its code runs, else when it heeds it."""
        with self._lock:
            if result.stop_asked:
                return
            result.stop_asked = True
            if result is self.exposed:
                thread_id = ctypes.c_ulong(self.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(Stopped))
        self.wake()

    def heed_stop(self) -> None:
        """Raise `Stopped` if the top job was told to stop while its code did not run."""
        if self.running and self.running[-1].stop_asked:
            raise Stopped

    def hand_over(self, job: Job | None) -> None:
        """Put a job into the queue; any thread may call this."""
        self.jobs.put(job)
        bell = self.bell
        if bell is not None:
            bell()

    def wake(self) -> None:
        """Make the thread look up from waiting; any thread may call this."""
        self.hand_over(None)

    def serve_workers(self) -> None:
        """Run what workers have handed over by now, as a job that waits does."""
        with shield():
            while not self.jobs.empty():
                self.serve_one(0.0, in_turn=False)

    def close(self) -> None:
        """Let the thread end after the job it is running."""
        self.closing = True
        self.wake()

    def take_all(self) -> list[Job]:
        """Take the work that has not begun off the queue, in order."""
        taken, self.later = list(self.later), deque()
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self.jobs.get_nowait())
        return [result for result in taken if result is not None]


def this_server() -> "Server | None":
    """The server whose thread is running, None in any other thread."""
    return getattr(here, "server", None)


class shield:
    """Keep `Stopped` out of the waiting of a job: raised anywhere in it, it could leave a lock.

    It comes out at the end of the block, or where the block heeds it.
    """

    def __enter__(self) -> None:
        self._server = this_server()
        if self._server is not None:
            self._exposed = self._server.exposed
            self._server.expose(None)

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.expose(self._exposed)
            self._server.heed_stop()
