"""An order in which the actions of a schedule can run, or who waits for whom in a circle.

Page `schedules`. Standard library only.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter

from mpcourse.schedules.actions import Action, Schedule, ScheduleError, makes


def execution_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Yield (device_index, action) in an order in which everything needed comes first.

    Each device goes through its list and waits where something is not there yet. Takes time in
    proportion to the number of actions.

    Args:
        schedule: One that `check_actions` lets through; it need not be complete.

    Raises:
        ScheduleError: Nobody can go on, although there are actions left. Raised at the end, after
            all that can be run.
    """
    num_stages, _, width = counts(schedule)
    # What is finished, a cell for each stage and micro-batch: large schedules have many of them.
    done = {kind: [bytearray(width) for _ in range(num_stages)] for kind in "FB"}
    done["I"] = done["B"]  # whichever makes the gradient of the input
    done["W"] = [bytearray(width) for _ in range(num_stages)]

    rows = [iter(row) for row in schedule]
    heads: list[Action | None] = [next(row, None) for row in rows]  # what each device does next
    waiting: defaultdict[tuple, list[int]] = defaultdict(list)  # what for -> which devices
    runnable = deque(range(len(schedule)))
    last = num_stages - 1
    while runnable:
        device = runnable.popleft()
        row, action = rows[device], heads[device]
        while action is not None:
            stage, kind, microbatch = action
            need = None
            if kind == "F":
                if stage > 0 and not done["F"][stage - 1][microbatch]:
                    need = stage - 1, "F", microbatch
            elif kind == "W":
                if not done["B"][stage][microbatch]:
                    need = stage, "B", microbatch
            elif not done["F"][stage][microbatch]:
                need = stage, "F", microbatch
            elif stage < last and not done["B"][stage + 1][microbatch]:
                need = stage + 1, "B", microbatch
            if need is not None:
                waiting[need].append(device)
                break
            yield device, action
            done[kind][stage][microbatch] = True
            result = makes(action)
            if result in waiting:
                runnable.extend(waiting.pop(result))
            action = next(row, None)
        heads[device] = action
    if waiting:
        stuck = {
            device: (heads[device], Action(*need))
            for need, devices in waiting.items()
            for device in devices
        }
        raise ScheduleError(_why_stuck(schedule, stuck))


def counts(schedule: Schedule) -> tuple[int, set[str], int]:
    """How many stages there are, which kinds of action, and how many micro-batches."""
    stages, kinds, microbatches = (
        set(map(itemgetter(field), chain.from_iterable(schedule))) for field in range(3)
    )
    return 1 + max(stages, default=-1), kinds, 1 + max(microbatches, default=-1)


def _why_stuck(schedule: Schedule, heads: dict[int, tuple[Action, Action]]) -> str:
    """The reason why no device goes on; `heads`: device -> (its next action, what that needs)."""
    makers = {makes(a): (d, a) for d, actions in enumerate(schedule) for a in actions}
    for device, (action, need) in sorted(heads.items()):
        maker, needed = makers.get(need, (None, need))
        if maker is None:
            return f"device {device}: {action} needs {needed}, which no device does"
        if maker == device:
            return f"device {device}: {action} comes before {needed}; {_rule(action, needed)}"
    # every device waits for another one that waits as well: going from one to the next must end in
    # a circle
    chain = [min(heads)]
    while chain[-1] not in chain[:-1]:
        chain.append(makers[heads[chain[-1]][1]][0])
    circle = chain[chain.index(chain[-1]) : -1]
    waits = []
    for device in sorted(circle):
        action, need = heads[device]
        maker, needed = makers[need]
        waits.append(f"device {device} waits with {action} for {needed} of device {maker}")
    return f"deadlock: {', '.join(waits)}"


def _rule(action: Action, needed: Action) -> str:
    if action.kind == "W":
        return "W comes after I"
    if action.kind == "F":
        return "a stage's forward comes after that of the stage before it"
    if needed.kind == "F":
        return "a backward comes after its forward"
    return "a stage's backward comes after that of the stage after it"
