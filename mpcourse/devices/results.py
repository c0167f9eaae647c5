"""What a worker owes whoever handed it work: a value, an error, or a way out (page `start_here`).

`Result` is a `concurrent.futures.Future` whose wait can be interrupted and never deadlocks between
workers.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpcourse.devices.workers import Worker

POLL_S = 0.2  # how often a wait looks up: Windows cannot interrupt a thread that waits for a lock
GRACE_S = 2.0  # how long a stopped job may take to end before its thread is given up

here = threading.local()  # .server: the serving thread, in that thread only


class Stopped(BaseException):
    """Raised in a job that was told to stop; no `Exception`, so that jobs let it pass."""


class Result(Future):
    """What a worker computes, or will have computed: a `concurrent.futures.Future`.

    Args:
        worker: Who runs the job.
        job: The work, without arguments.
        around: Surrounds the job in the worker.
    """

    def __init__(
        self,
        worker: "Worker",
        job: Callable[[], Any],
        around: contextlib.AbstractContextManager | None = None,
    ) -> None:
        super().__init__()
        self.worker = worker
        self.from_worker = hasattr(here, "server")
        self.stop_asked = False
        self._work = (job, around or contextlib.nullcontext())

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the work and return its value, or raise its exception.

        A worker that waits for another one runs what workers hand it meanwhile, so two workers that
        wait for each other both go on; work from elsewhere keeps its turn. An interrupt (Ctrl-C,
        the stop button) stops the work.

        Args:
            timeout: Seconds to wait; `None` waits until the work ends.

        Raises:
            TimeoutError: The work has not ended after `timeout` seconds. It goes on.
        """
        with shield():
            try:
                self._wait(None if timeout is None else time.monotonic() + timeout)
            except (KeyboardInterrupt, Stopped):
                stop([self])
                raise
            if not self.done():
                raise TimeoutError(f"{self.worker.name} is still at work after {timeout} s")
            value = super().result()
            self.worker.lane.hand_out(value)
            return value

    def _wait(self, deadline: float | None) -> None:
        """Return when the work has ended or the deadline has passed, whichever comes first."""
        server = getattr(here, "server", None)
        if server is not None:
            self.add_done_callback(lambda _: server.jobs.put(None))  # wakes serve_one
        while not self.done():
            left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if left <= 0:
                return
            if server is not None:
                # what stands before our own work in our own queue has to run first
                server.serve_one(left, in_turn=self.worker.server is server)
                server.heed_stop()
            else:
                with contextlib.suppress(TimeoutError, CancelledError):
                    super().exception(left)

    def run(self) -> None:
        """Do the work and keep its value or its exception; called in the worker's thread."""
        # drop the inputs: a kept Result must not keep them too
        (job, around), self._work = self._work, None
        if not self.set_running_or_notify_cancel():
            return
        try:
            with around:
                value = here.server.call(self, job)
            self.set_result(value)
        except BaseException as error:
            note = f"raised in the worker of {self.worker.name}"
            if note not in getattr(error, "__notes__", ()):  # it has it when it came through a wait
                error.add_note(note)
            self.settle(error)
        finally:
            del self, job, around  # the kept error has this frame: no way from it to the inputs

    def settle(self, error: BaseException) -> None:
        """Keep `error` as the outcome, unless there is one."""
        with contextlib.suppress(Exception):  # InvalidStateError: it has its outcome
            self.set_exception(error)


def shield() -> contextlib.AbstractContextManager:
    """Keep `Stopped` out of the waiting of a job: raised anywhere in it, it could leave a lock."""
    server = getattr(here, "server", None)
    return contextlib.nullcontext() if server is None else server.shield()


def collect(results: Iterable[Result], timeout: float | None = None) -> list[Any]:
    """Wait for all the work, then return its values or raise the first failure.

    Nothing is left running behind a failure: every job has ended when it is raised. An interrupt,
    or a timeout, stops all of them.

    Args:
        results: What `submit` returned; the order of the values is theirs.
        timeout: Seconds for all of them together; `None` waits until they end.
    """
    results = list(results)
    deadline = None if timeout is None else time.monotonic() + timeout
    with shield():
        try:
            for result in results:
                result._wait(deadline)
                if not result.done():
                    raise TimeoutError(f"{result.worker.name} is still at work after {timeout} s")
        except (KeyboardInterrupt, Stopped, TimeoutError):
            stop(results)
            raise
        return [result.result() for result in results]


def stop(results: Iterable[Result]) -> None:
    """Stop all the work, wait up to two seconds for its end, and leave the workers usable."""
    results = list(results)
    for result in results:
        result.worker.stop(result)
    deadline = time.monotonic() + GRACE_S
    try:
        while time.monotonic() < deadline and not all(result.done() for result in results):
            time.sleep(0.005)
    finally:  # also when a second interrupt comes while this waits
        for result in results:
            result.worker.give_up(result)
