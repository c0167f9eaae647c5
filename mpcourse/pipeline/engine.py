"""Run a schedule: every device does its actions in order, as soon as what they need is there.

Nothing here decides an order; the schedule does (page `pipeline`). The first action that fails
cancels the step: no new action starts anywhere. Source: the runtime loop of
torch/distributed/pipelining/schedules.py, with threads for ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpcourse.devices.devices import Device, capture_modes, modes_set
from mpcourse.devices.streams import copy_after, record_event
from mpcourse.devices.timing import HostClock, clock_for
from mpcourse.devices.workers import add_note, run_together, wait_until
from mpcourse.schedules.actions import KINDS, Action, Schedule, makes, needs


class LinkedAction(NamedTuple):
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


def link_actions(schedule: Schedule, num_stages: int) -> list[list[LinkedAction]]:
    """Say for each action of a valid schedule where its value comes from and where it goes."""
    sources = {
        action: next((n for n in needs(action, num_stages) if n[0] != action.stage_index), None)
        for row in schedule
        for action in row
    }
    takers = {sources[action]: device for device, row in enumerate(schedule) for action in row}
    return [
        [LinkedAction(a, sources[a], makes(a), takers.get(makes(a))) for a in row]
        for row in schedule
    ]


def run_schedule(
    rows: Sequence[Sequence[LinkedAction]],
    devices: Sequence[Device],
    run: Callable[[Action, Any], Any],
    *,
    gradients: bool,
) -> list[HostClock]:
    """Run every action of a valid schedule on its device; return the clocks that timed them.

    `run(action, value)` does one action: `value` is the output or gradient that it waited for, if
    for any, and what it returns is handed on. Autocast is the caller's. What the first failing
    action raises comes out, with a note that names device and action, when the actions that were
    running have ended.
    """
    step = _Step(devices, run)
    modes = capture_modes(devices) | {"inference": False, "grad": gradients}

    def work(me: int) -> None:
        try:
            with modes_set(modes, devices[me].device.type):
                step.do_row(me, rows[me])
        except BaseException as error:
            step.failures.append(error)
            step.cancel()
            raise

    for clock in step.clocks:
        clock.zero()
    try:
        run_together([(device.worker, work, me) for me, device in enumerate(devices)])
    except BaseException as error:
        step.cancel()
        first = step.failures[0] if step.failures and isinstance(error, Exception) else error
        step.failures.clear()  # break the cycle error -> traceback -> frame -> error
        step.values.clear()
        raise first from None
    return step.clocks


class _Step:
    """One run of a schedule: the values under way between its devices, and whether to go on."""

    def __init__(self, devices: Sequence[Device], run: Callable[[Action, Any], Any]) -> None:
        self.devices, self.run = devices, run
        self.workers = [device.worker for device in devices]
        self.clocks = [clock_for(device.device) for device in devices]
        self.queued = any(device.device.type != "cpu" for device in devices)  # work, on some device
        self.values: dict[Action, tuple[Any, Any]] = {}  # by what made them, with their events
        self.waiting: set[int] = set()  # the devices to wake when their value has come
        self.failures: list[BaseException] = []
        self.cancelled = False

    def cancel(self) -> None:
        """Let no new action start, and wake whoever waits for a value."""
        self.cancelled = True
        for worker in self.workers:
            worker.wake()

    def do_row(self, me: int, row: Sequence[LinkedAction]) -> None:
        """One device's actions: wait, take in, do, hand on."""
        place, clock = self.devices[me].device, self.clocks[me]
        values, waiting, run = self.values, self.waiting, self.run
        for action, source, made, taker in row:
            if source is not None and source not in values:
                waiting.add(me)  # before it looks again, so that no wake-up is missed
                wait_until(lambda source=source: source in values or self.cancelled)
                waiting.discard(me)
            if self.cancelled:
                return
            try:
                value = None
                if source is not None:
                    value, event = values.pop(source)
                    if self.queued:
                        value = copy_after(event, value, place)
                start = clock.now()
                value = run(action, value)
                clock.note(action, start)
                if taker is not None:
                    event = record_event(value, place) if self.queued else None
            except BaseException as error:
                where = f"raised in device {me}, {action}: {_in_words(action, self.devices[me])}"
                add_note(error, where)
                raise
            if taker is not None:
                values[made] = value, event
                if taker in waiting:
                    self.workers[taker].wake()


def _in_words(action: Action, device: Device) -> str:
    what = f"{KINDS[action.kind]} of micro-batch {action.microbatch_index}"
    return f"stage {action.stage_index}, {what}, on {device}"
