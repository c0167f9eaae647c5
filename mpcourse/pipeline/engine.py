"""Run a schedule: every device does its actions in order, as soon as what they need is there.

Nothing here decides an order; the schedule does (page `pipeline`). Tensors travel between the
devices' workers through inboxes. The first action that fails stops the step: no new action starts
anywhere. Source: the runtime loop of torch/distributed/pipelining/schedules.py, with threads for
ranks.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from mpcourse.devices.clocks import clock_for
from mpcourse.devices.devices import Device
from mpcourse.devices.modes import capture_modes, modes_set
from mpcourse.devices.results import POLL_S, collect
from mpcourse.schedules.actions import Action, Schedule, makes, needs
from mpcourse.schedules.timeline import Timeline


class Abandoned(Exception):
    """Another device failed: what this one waits for will not come."""


class Inbox:
    """What other devices have sent to one device, by the action that made it."""

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        self._arrivals: queue.SimpleQueue[tuple[Action, Any] | None] = queue.SimpleQueue()
        self._here: dict[Action, Any] = {}

    def put(self, action: Action, value: Any) -> None:
        """Deliver the value of `action`; any device may call this."""
        self._arrivals.put((action, value))

    def wake(self) -> None:
        """Make a waiting `take` look whether the step was stopped."""
        self._arrivals.put(None)

    def take(self, action: Action) -> Any:
        """Wait for the value of `action`; only the inbox's own device calls this.

        Raises:
            Abandoned: The step was stopped.
        """
        while action not in self._here:
            if self._stopped.is_set():
                raise Abandoned
            try:
                arrival = self._arrivals.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if arrival is not None:
                self._here[arrival[0]] = arrival[1]
        return self._here.pop(action)


def run_schedule(
    schedule: Schedule,
    devices: Sequence[Device],
    run: Callable[[Action, Any], Any],
    num_stages: int,
    *,
    gradients: bool,
) -> Timeline:
    """Run every action of a valid schedule on its device, and measure when each ran.

    Args:
        schedule: One list of actions per device.
        devices: One device for each of them.
        run: Does one action: called with it and with the output or gradient that it waited for
            (None if for none), returns what it makes.
        num_stages: How many stages there are in all.
        gradients: Whether the workers record a graph; autocast is the caller's.

    Returns:
        The measured timeline, in seconds.

    Raises:
        Exception: What the first failing action raised, with a note that names device and action.
            The actions that were running have ended by then.
    """
    stopped = threading.Event()
    inboxes = [Inbox(stopped) for _ in devices]
    home = {a.stage_index: d for d, actions in enumerate(schedule) for a in actions}
    clocks = [clock_for(device.device) for device in devices]

    def stop() -> None:
        stopped.set()
        for inbox in inboxes:
            inbox.wake()

    modes = capture_modes(devices) | {"inference": False, "grad": gradients}

    def work(me: int) -> None:
        with modes_set(modes, devices[me].device.type):
            do_all(me)

    def do_all(me: int) -> None:
        local: dict[Action, Any] = {}
        for action in schedule[me]:
            try:
                value = _wait_for(action, num_stages, local, inboxes[me], devices[me].device)
                if stopped.is_set():
                    return
                clocks[me].start(action)
                made = run(action, value)
                clocks[me].end()
            except Abandoned:
                return
            except BaseException as error:
                stop()
                error.add_note(f"raised in device {me}, {action}: {_in_words(action, devices[me])}")
                raise
            _hand_on(action, made, num_stages, home, me, local, inboxes)

    for clock in clocks:
        clock.zero()
    try:
        collect([device.submit(work, me) for me, device in enumerate(devices)])
    except BaseException:
        stop()
        raise
    events = [event for me, clock in enumerate(clocks) for event in clock.events(me)]
    return Timeline.from_clock(events, len(devices))


def _wait_for(
    action: Action, num_stages: int, local: dict[Action, Any], inbox: Inbox, device: torch.device
) -> Any:
    """What `action` needs from a neighbouring stage: from this device, or out of the inbox."""
    source = _source(action, num_stages)
    if source is None:
        return None
    if source in local:
        return local.pop(source)
    value, ready = inbox.take(source)
    return _arrive(value, ready, device)


def _source(action: Action, num_stages: int) -> Action | None:
    """The action of another stage whose value `action` takes in."""
    others = [need for need in needs(action, num_stages) if need.stage_index != action.stage_index]
    return others[0] if others else None


def _hand_on(
    action: Action,
    made: Any,
    num_stages: int,
    home: dict[int, int],
    me: int,
    local: dict[Action, Any],
    inboxes: list[Inbox],
) -> None:
    """Give what `action` made to the stage that needs it, if one does."""
    step = {"F": 1, "B": -1, "I": -1}.get(action.kind, 0)
    target = action.stage_index + step
    if step == 0 or not 0 <= target < num_stages:
        return
    if home[target] == me:
        local[makes(action)] = made
    else:
        inboxes[home[target]].put(makes(action), (made, _leave(made)))


def _leave(value: Any) -> Any:
    """On CUDA an event that says when the value is there; on the CPU it is there already."""
    if torch.cuda.is_initialized():
        return torch.cuda.current_stream().record_event()
    return None


def _arrive(value: Any, ready: Any, device: torch.device) -> Any:
    """Bring the value to `device`, behind the event that says when it is there."""
    if ready is None:
        return value
    stream = torch.cuda.current_stream(device)
    stream.wait_event(ready)

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf.record_stream(stream)
        return leaf.to(device, non_blocking=True)

    return tree_map(move, value)


def _in_words(action: Action, device: Device) -> str:
    kinds = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
    what = f"{kinds[action.kind]} of micro-batch {action.microbatch_index}"
    return f"stage {action.stage_index}, {what}, on {device}"
