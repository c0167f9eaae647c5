"""What a worker owes whoever handed it work: a value, an error, or a way out (page `start_here`).

`Result` is a `concurrent.futures.Future` whose wait can be interrupted and never deadlocks between
workers.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

from mpcourse.devices.lanes import Lane
from mpcourse.devices.serving import POLL_S, Stopped, here, shield, this_server

GRACE_S = 2.0  # how long a stopped job may take to end before its thread is given up


class Owner(Protocol):
    """The worker that a result belongs to (`mpcourse.devices.workers.Worker`)."""

    name: str
    lane: Lane

    def is_here(self) -> bool:
        """Whether the caller runs in this worker's thread."""

    def stop(self, result: "Result") -> None:
        """Take `result` off the queue, or stop it where it runs."""

    def give_up(self, result: "Result") -> None:
        """Go on without a job that cannot be stopped."""


class Result(Future):
    """What a worker computes, or will have computed: a `concurrent.futures.Future`.

    Args:
        worker: Who runs the job.
        job: The work, without arguments.
        around: Surrounds the job in the worker.
    """

    def __init__(
        self,
        worker: Owner,
        job: Callable[[], Any],
        around: contextlib.AbstractContextManager | None = None,
    ) -> None:
        super().__init__()
        self.worker = worker
        self.from_worker = this_server() is not None
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
        try:
            with shield():
                try:
                    self._wait(None if timeout is None else time.monotonic() + timeout)
                except (KeyboardInterrupt, Stopped):
                    stop([self])
                    raise
                if not self.done():
                    raise TimeoutError(f"{self.worker.name} is still at work after {timeout} s")
                self.fall_in()
                value = super().result()
                self.worker.lane.hand_out(value)
                return value
        finally:
            del self  # a kept error has this frame: no way from the error back to itself

    def fall_in(self) -> None:
        """Let what the caller does next wait for the work: what failed may have queued much."""
        with contextlib.suppress(RuntimeError):  # a GPU that refuses all has said so in the work
            self.worker.lane.fall_in()

    def _wait(self, deadline: float | None) -> None:
        """Return when the work has ended or the deadline has passed, whichever comes first."""
        server = this_server()
        if server is not None:
            self.add_done_callback(lambda _: server.wake())
        while not self.done():
            left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if left <= 0:
                return
            if server is not None:
                # what stands before our own work in our own queue has to run first
                server.serve_one(left, in_turn=self.worker.is_here())
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
            try:
                add_note(error, f"raised in the worker of {self.worker.name}")
            finally:  # whatever the error's class does: nobody may wait for ever
                self.settle(error)
        finally:
            del self, job, around  # the kept error has this frame: no way from it to the inputs

    def settle(self, error: BaseException) -> None:
        """Keep `error` as the outcome, unless there is one."""
        with contextlib.suppress(Exception):  # InvalidStateError: it has its outcome
            self.set_exception(error)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception once; one that takes no notes (a frozen one) stays as it is."""
    if note not in getattr(error, "__notes__", ()):  # it has it when it came through a wait
        with contextlib.suppress(Exception):
            error.add_note(note)


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
    values, result = [], None
    try:
        with shield():
            try:
                for result in results:
                    result._wait(deadline)
                    if not result.done():
                        raise TimeoutError(
                            f"{result.worker.name} is still at work after {timeout} s"
                        )
            except (KeyboardInterrupt, Stopped, TimeoutError):
                stop(results)
                raise
            for result in results:
                result.fall_in()  # before one of them raises
            for result in results:
                values.append(result.result())
            return values
    finally:
        del results, result, values  # as in Result.result


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
        for result in results:
            result.fall_in()  # what it has queued on a GPU goes on
