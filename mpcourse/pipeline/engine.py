"""Run a schedule: every device does its actions in order, as soon as what they need is there.

Nothing here decides an order; the schedule does (page `pipeline`). Tensors travel between the
devices' workers through mailboxes. The first action that fails stops the step: no new action
starts anywhere. Source: the runtime loop of torch/distributed/pipelining/schedules.py, with threads
for ranks.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from mpcourse.devices.clocks import HostClock, clock_for
from mpcourse.devices.crossings import arrive, leave
from mpcourse.devices.devices import Device
from mpcourse.devices.modes import capture_modes, modes_set
from mpcourse.devices.results import Result, add_note, collect, stop
from mpcourse.devices.serving import POLL_S, this_server
from mpcourse.schedules.actions import KINDS, Action, Schedule, makes, needs


class Task(NamedTuple):
    """An action and its neighbours.

    Attributes:
        action: What to do.
        source: The action of another stage whose value it takes in, if it takes one.
        made: Under which name others ask for its value.
        taker: Which device takes the value in, if one does.
    """

    action: Action
    source: Action | None
    made: Action
    taker: int | None


def find_neighbours(schedule: Schedule, num_stages: int) -> list[list[Task]]:
    """Say for each action of a valid schedule where its value comes from and where it goes."""
    sources = {
        action: next((n for n in needs(action, num_stages) if n[0] != action.stage_index), None)
        for row in schedule
        for action in row
    }
    takers = {sources[action]: device for device, row in enumerate(schedule) for action in row}
    return [[Task(a, sources[a], makes(a), takers.get(makes(a))) for a in row] for row in schedule]


class Abandoned(Exception):
    """Another device failed: what this one waits for will not come."""


class Mailbox:
    """What has been sent to one device, by the action that made it."""

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        self._arrivals: queue.SimpleQueue[tuple[Action, Any, Any] | None] = queue.SimpleQueue()
        self._here: dict[Action, tuple[Any, Any]] = {}

    def put(self, made: Action, value: Any, ready: Any) -> None:
        """Deliver a value, and what says when it is there; any device may call this."""
        self._arrivals.put((made, value, ready))

    def keep(self, made: Action, value: Any) -> None:
        """Deliver a value to oneself."""
        self._here[made] = value, None

    def wake(self) -> None:
        """Make a waiting `take` look up."""
        self._arrivals.put(None)

    def take(self, made: Action | None, place: torch.device) -> Any:
        """Wait for a value and bring it to `place`; only the mailbox's own worker calls this.

        What other workers hand to this one meanwhile is served: one of them may be a stage that
        has to end before the value can come.

        Args:
            made: The action that makes the value; None: there is nothing to wait for.
            place: Of the device that the mailbox belongs to.

        Raises:
            Abandoned: The step was stopped.
        """
        if made is None:
            if self._stopped.is_set():
                raise Abandoned
            return None
        while made not in self._here:
            self._receive()
        if self._stopped.is_set():
            raise Abandoned
        value, ready = self._here.pop(made)
        return arrive(value, ready, place)

    def _receive(self) -> None:
        """Wait for one arrival, or for a reason to look up."""
        try:
            arrival = self._arrivals.get(timeout=POLL_S)
        except queue.Empty:
            arrival = None
        if arrival is not None:
            made, value, ready = arrival
            self._here[made] = value, ready
            return
        if self._stopped.is_set():
            raise Abandoned
        this_server().serve_workers()


_one_hand_over = threading.Lock()  # two steps on the same devices: all rows of one, then the other


def run_schedule(
    tasks: Sequence[Sequence[Task]],
    devices: Sequence[Device],
    run: Callable[[Action, Any], Any],
    *,
    gradients: bool,
) -> list[HostClock]:
    """Run every action of a valid schedule on its device, and measure when each ran.

    Args:
        tasks: The schedule with its neighbours (`find_neighbours`), a row per device.
        devices: One device for each row, no two the same.
        run: Does one action: called with it and with the output or gradient that it waited for
            (None if for none), returns what it makes.
        gradients: Whether the workers record a graph; autocast is the caller's.

    Returns:
        The clock of each device, which noted when its actions began and ended.

    Raises:
        Exception: What the first failing action raised, with a note that names device and action.
            The actions that were running have ended by then.
    """
    stopped = threading.Event()
    failed: list[BaseException] = []
    mailboxes = [Mailbox(stopped) for _ in devices]
    clocks = [clock_for(device.device) for device in devices]
    modes = capture_modes(devices) | {"inference": False, "grad": gradients}

    def stop_all() -> None:
        stopped.set()
        for mailbox in mailboxes:
            mailbox.wake()

    def work(me: int) -> None:
        server = this_server()
        bell, server.bell = server.bell, mailboxes[me].wake
        try:
            with modes_set(modes, devices[me].device.type):
                _do_all(tasks[me], me, devices[me], run, mailboxes, clocks[me])
        except Abandoned:
            pass
        except BaseException as error:
            failed.append(error)
            stop_all()
            raise
        finally:
            server.bell = bell

    for clock in clocks:
        clock.zero()
    try:
        _run_all(work, devices)
    except BaseException as error:
        stop_all()
        first = failed[0] if failed and isinstance(error, Exception) else error
        failed.clear()  # the error has this frame: no way from it back to itself
        raise first from None
    return clocks


def _run_all(work: Callable[[int], None], devices: Sequence[Device]) -> None:
    """Hand `work(row)` to every device, and wait. Work for the own worker, if any, begins last."""
    own = [me for me, device in enumerate(devices) if device.is_here()]
    handed: list[Result] = []
    try:
        with _one_hand_over:
            for me, device in enumerate(devices):
                if me not in own:
                    handed.append(device.submit(work, me))
        handed += [devices[me].submit(work, me) for me in own]
    except BaseException:  # an interrupt between two hand-overs
        stop(handed)
        raise
    collect(handed)


def _do_all(
    tasks: Sequence[Task],
    me: int,
    device: Device,
    run: Callable[[Action, Any], Any],
    mailboxes: list[Mailbox],
    clock: HostClock,
) -> None:
    """One device's row: take in, do, hand on."""
    mailbox, place = mailboxes[me], device.device
    for action, source, made, taker in tasks:
        try:
            value = mailbox.take(source, place)
            began = clock.now()
            result = run(action, value)
            clock.note(action, began)
        except Abandoned:
            raise
        except BaseException as error:
            add_note(error, f"raised in device {me}, {action}: {_in_words(action, device)}")
            raise
        if taker == me:
            mailbox.keep(made, result)
        elif taker is not None:
            mailboxes[taker].put(made, result, leave(place))


def _in_words(action: Action, device: Device) -> str:
    what = f"{KINDS[action.kind]} of micro-batch {action.microbatch_index}"
    return f"stage {action.stage_index}, {what}, on {device}"
