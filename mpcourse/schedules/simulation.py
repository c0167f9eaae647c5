"""How long would it take? A schedule with given costs becomes a timeline.

Pages `pipeline` and `schedules`.

Standard library only; nothing is run, the answer is a prediction.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from numbers import Real
from statistics import median

from mpcourse.schedules.actions import Action, Schedule, makes, needs
from mpcourse.schedules.order import count_stages, execution_order
from mpcourse.schedules.timeline import Event, Timeline, in_order
from mpcourse.schedules.validate import check_actions

COST_OF_KIND = {
    "F": "forward",
    "B": "backward",
    "I": "input_backward",
    "W": "weight_backward",
}


@dataclass(frozen=True)
class Costs:
    """What one micro-batch costs: each one number for all stages, or a list with one per stage.

    All are 0 or more, in whatever unit; the timeline is in the same one.

    Attributes:
        forward: Time of F.
        backward: Time of B. For two halves of 1 each it is 2; nothing is halved for you.
        transfer: Time between a stage and the next one, for the outputs one way and for the
            gradients the other way (in a list: from stage i to i + 1, the last one is not used). It
            delays the receiver and keeps no device busy. Between two stages on one device it is 0.
        input_backward: Time of I; needed for schedules that have it.
        weight_backward: Time of W; needed for schedules that have it.
        recompute: Which stages run their forward again, True or a list with a flag per stage: their
            B or I takes `forward` more. It is not part of `backward` and `input_backward`.

    Raises:
        TypeError, ValueError: A time is not a number, or negative, or not finite; a flag is no
            bool.
    """

    forward: float | Sequence[float]
    backward: float | Sequence[float]
    transfer: float | Sequence[float] = 0.0
    input_backward: float | Sequence[float] | None = None
    weight_backward: float | Sequence[float] | None = None
    recompute: bool | Sequence[bool] = False

    def __post_init__(self) -> None:
        is_list = isinstance(self.recompute, Sequence)
        recompute_flags(self.recompute, len(self.recompute) if is_list else 1)
        for field in fields(self)[:-1]:
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                for time in _as_list(value, 1):
                    _check_time(field.name, time)

    def per_stage(self, name: str, num_stages: int) -> list[float]:
        """The cost `name` ("forward", "transfer", …) as a list with one number per stage."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"the schedule splits its backwards, so Costs needs {name}: the time of "
                f"{'I' if name == 'input_backward' else 'W'}, one number or one per stage"
            )
        times = [float(time) for time in _as_list(value, num_stages)]
        if len(times) != num_stages:
            raise ValueError(
                f"{name} has {len(times)} numbers, the schedule has {num_stages} stages"
            )
        return times

    def times_of(self, kind: str, num_stages: int) -> list[float]:
        """What an action of this kind takes in each stage, a forward that runs again included."""
        times = self.per_stage(COST_OF_KIND[kind], num_stages)
        if kind not in "BI":
            return times
        again = self.per_stage("forward", num_stages)
        flags = recompute_flags(self.recompute, num_stages)
        return [time + more * flag for time, more, flag in zip(times, again, flags, strict=True)]


def recompute_flags(recompute: bool | Sequence[bool], num_stages: int) -> list[bool]:
    """Which stages recompute, a flag per stage; `recompute` is one flag for all, or a list.

    A stage that recomputes keeps a micro-batch's input from the start of F to the end of B (or W),
    and its activations only from the start of B (or I), where its forward runs once more.
    """
    is_list = isinstance(recompute, Sequence)
    flags = list(recompute) if is_list else [recompute] * num_stages
    if not all(isinstance(flag, bool) for flag in [*flags, *([] if is_list else [recompute])]):
        raise TypeError(
            f"recompute is True or False, or a list with one of them per stage; got {recompute!r}"
        )
    if len(flags) != num_stages:
        raise ValueError(f"recompute has {len(flags)} flags, there are {num_stages} stages")
    return flags


def _as_list(value: float | Sequence[float], count: int) -> list[float]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return list(value) if is_list else [value] * count


def _check_time(name: str, time: float) -> None:
    if isinstance(time, bool) or not isinstance(time, Real):
        raise TypeError(f"{name} is a number of 0 or more, or a list of them; got {time!r}")
    if not (isfinite(time) and time >= 0):
        raise ValueError(f"{name} is a number of 0 or more, or a list of them; got {time!r}")


def costs_from(timeline: Timeline) -> Costs:
    """The costs of the actions in a measured timeline: per stage and kind, the median duration.

    Each stage needs an event of each kind that another stage has. Transfers cannot be seen in a
    timeline; they are left at 0. Where a stage recomputes, its forward is subtracted from its B or
    I again.
    """
    durations: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for event in timeline.events:
        durations[event.action.kind, event.action.stage_index].append(event.duration)
    num_stages = 1 + max((stage for _, stage in durations), default=-1)
    costs: dict[str, list[float]] = {"forward": [], "backward": []}
    for kind in {kind for kind, _ in durations}:
        missing = [stage for stage in range(num_stages) if (kind, stage) not in durations]
        if missing:
            raise ValueError(f"the timeline has no {kind} of stage {missing[0]}")
        costs[COST_OF_KIND[kind]] = [median(durations[kind, stage]) for stage in range(num_stages)]
    flags = list(timeline.recompute)
    for name in ("backward", "input_backward"):
        if flags and costs.get(name):
            rows = zip(costs[name], costs["forward"], flags, strict=True)
            costs[name] = [max(0.0, time - again * flag) for time, again, flag in rows]
    return Costs(**costs, recompute=flags or False)


def count_transfers(schedule: Schedule) -> int:
    """How many outputs and gradients go from one device to another."""
    devices = {makes(action): device for action, device in check_actions(schedule).items()}
    num_stages = count_stages(schedule)
    return sum(
        devices.get(need, device) != device
        for action, device in devices.items()
        for need in needs(action, num_stages)
    )


def simulate(schedule: Schedule, costs: Costs | Sequence[Costs]) -> Timeline:
    """Say when each action starts and ends, if each starts as soon as it can.

    An action starts when its device has finished the one before it and everything that it needs has
    arrived: the output of the stage before, the gradient of the stage after. Takes time in
    proportion to the number of actions. The schedule need not be complete (forwards alone will do),
    but what is there must be able to run.

    Args:
        schedule: One list of actions per device.
        costs: What each action takes, and each transfer between devices. A list has one `Costs` per
            micro-batch, for micro-batches of different sizes.

    Returns:
        The timeline, from 0, in the unit of the costs; one event per action.

    Raises:
        ScheduleError: An action is not legal, or the devices would wait for ever.
        TypeError, ValueError: The costs do not fit the schedule; before anything is simulated.
    """
    home = {action.stage_index: device for action, device in check_actions(schedule).items()}
    num_stages = count_stages(schedule)
    kinds = {action.kind for row in schedule for action in row}
    num_microbatches = 1 + max((a.microbatch_index for row in schedule for a in row), default=-1)

    def table(costs: Costs) -> dict[str, list[float]]:
        times = {kind: costs.times_of(kind, num_stages) for kind in kinds}
        return times | {"transfer": costs.per_stage("transfer", num_stages)}

    same = isinstance(costs, Costs)
    tables = [table(costs)] * num_microbatches if same else [table(each) for each in costs]
    if len(tables) != num_microbatches:
        raise ValueError(
            f"costs has {len(tables)} entries, the schedule has {num_microbatches} micro-batches"
        )
    recompute = _flags_of([costs] if same else costs, num_stages)

    made: dict[Action, float] = {}  # when there was what others need
    free = [0.0] * len(schedule)  # when each device has finished what it does
    events = []
    for device, action in execution_order(schedule):
        stage, kind, microbatch = action
        cost = tables[microbatch]
        start = free[device]
        for need in needs(action, num_stages):
            arrival = made[need]
            if home[need[0]] != device:
                arrival += cost["transfer"][min(need[0], stage)]
            start = max(start, arrival)
        free[device] = made[makes(action)] = start + cost[kind][stage]
        events.append(Event(device, action, start, free[device]))
    return Timeline(in_order(events), len(schedule), recompute)


def _flags_of(costs: Sequence[Costs], num_stages: int) -> tuple[bool, ...]:
    """Which stages recompute, all micro-batches alike; empty: none."""
    found = {tuple(recompute_flags(each.recompute, num_stages)) for each in costs}
    if len(found) > 1:
        raise ValueError("costs differ in recompute; a stage recomputes all micro-batches or none")
    return next((flags for flags in found if any(flags)), ())
