"""Is a schedule legal? And if not, where and why (page `schedules`).

Standard library only. The rules are those of `_validate_schedule` in
torch/distributed/pipelining/schedules.py; deadlocks and the memory cap are checked here as well.
"""

from collections.abc import Sequence
from math import inf

from mpcourse.schedules.actions import KINDS, Action, Schedule, ScheduleError, check_count
from mpcourse.schedules.order import execution_order

# Which actions say that the backward is in one piece, or in two, when this one says the other.
RIVALS = {"F": "", "B": "IW", "I": "B", "W": "B"}


def validate_schedule(
    schedule: Schedule,
    num_stages: int,
    num_microbatches: int,
    max_activations: int | None = None,
) -> None:
    """Return if every micro-batch goes through every stage once, in an order that can run.

    Checked in this order: each action by itself (it exists, stands once, on the one device that has
    its stage, the backward whole or in halves), what is missing, who waits for whom, the memory.

    Args:
        schedule: One list of actions per device.
        num_stages: How many stages there must be, 1 or more.
        num_microbatches: How many micro-batches there must be, 1 or more.
        max_activations: The most stage-micro-batches that a device may hold at once, each from its
            F to its B, or to its W. None: any number.

    Raises:
        ScheduleError: The first thing that is wrong.
    """
    check_count("num_stages", num_stages)
    check_count("num_microbatches", num_microbatches)
    if max_activations is not None:
        check_count("max_activations", max_activations)
    devices = check_actions(schedule, num_stages, num_microbatches)
    _check_complete(devices, num_stages, num_microbatches)
    for _ in execution_order(schedule):
        pass
    if max_activations is not None:
        check_memory(schedule, max_activations)


def check_actions(
    schedule: Schedule, num_stages: int | None = None, num_microbatches: int | None = None
) -> dict[Action, int]:
    """Check each action by itself and against those before it; the order is not looked at.

    The schedule need not be complete; None stands for any number of stages or micro-batches. What
    is returned is the device_index of every action.
    """
    if not isinstance(schedule, Sequence) or not schedule:
        raise ScheduleError(f"a schedule is a list with one list per device; got {schedule!r}")
    devices: dict[Action, int] = {}
    homes: dict[int, int] = {}  # the device of each stage
    for device, actions in enumerate(schedule):
        if isinstance(actions, str | Action) or not isinstance(actions, Sequence):
            raise ScheduleError(f"device {device}: expected a list of actions, got {actions!r}")
        for action in actions:
            fault = (
                _fault_in_itself(action, num_stages, num_microbatches)
                or _fault_of_place(action, device, homes)
                or _fault_of_repeat(action, devices)
            )
            if fault:
                raise ScheduleError(f"device {device}: {fault}")
            homes[action[0]] = devices[action] = device
    return devices


def _fault_in_itself(
    action: Action, num_stages: int | None, num_microbatches: int | None
) -> str | None:
    if not isinstance(action, Action):
        return f"{action!r} is no Action; nothing stands for waiting, a device waits by itself"
    stage, kind, microbatch = action
    if not isinstance(kind, str) or kind not in KINDS:
        return f"{action} has kind {kind!r}, which is not one of {', '.join(KINDS)}"
    for name, index, limit in (
        ("stage_index", stage, num_stages),
        ("microbatch_index", microbatch, num_microbatches),
    ):
        if type(index) is not int or not 0 <= index < (limit or inf):
            allowed = "0 or more" if limit is None else f"0 to {limit - 1}"
            return f"{action} has {name} {index!r}, which is not in {allowed}"
    return None


def _fault_of_place(action: Action, device: int, homes: dict[int, int]) -> str | None:
    home = homes.get(action[0], device)
    if home == device:
        return None
    return f"{action} stands here, but stage {action.stage_index} is on device {home}"


def _fault_of_repeat(action: Action, devices: dict[Action, int]) -> str | None:
    if action in devices:
        return f"{action} stands twice"
    for other in RIVALS[action[1]]:
        rival = Action(action[0], other, action[2])
        if rival in devices:
            return f"{action} and {rival}: a backward is either whole (B) or split (I, then W)"
    return None


def _check_complete(devices: dict[Action, int], num_stages: int, num_microbatches: int) -> None:
    homes = {action.stage_index: device for action, device in devices.items()}
    for stage in range(num_stages):
        for microbatch in range(num_microbatches):
            halves = {Action(stage, kind, microbatch) for kind in "IW"}
            split = any(half in devices for half in halves)
            for kind in "FIW" if split else "FB":
                action = Action(stage, kind, microbatch)
                if action in devices:
                    continue
                if stage in homes:
                    halves_do = " (I and W do as well)" if kind == "B" else ""
                    raise ScheduleError(f"device {homes[stage]}: {action} is missing{halves_do}")
                raise ScheduleError(f"{action} is missing: no device has stage {stage}")


def check_memory(schedule: Schedule, max_activations: int) -> None:
    """Refuse a schedule, complete or not, in which a device would hold too much."""
    for device, actions in enumerate(schedule):
        in_flight = 0
        for action in actions:
            in_flight += {"F": 1, "I": 0, "B": -1, "W": -1}[action.kind]
            if in_flight > max_activations:
                raise ScheduleError(
                    f"device {device}: {action} makes it hold {in_flight} activations; "
                    f"max_activations is {max_activations}"
                )
