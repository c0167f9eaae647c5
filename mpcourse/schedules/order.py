"""An order in which the actions of a schedule can run, or who waits for whom in a circle.

Page `schedules`. Standard library only.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from mpcourse.schedules.actions import Action, Schedule, ScheduleError, makes, needs


def count_stages(schedule: Schedule) -> int:
    """How many stages there are, if none is left out."""
    return 1 + max((action[0] for row in schedule for action in row), default=-1)


def execution_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Yield (device_index, action) in an order in which everything needed comes first.

    Each device goes through its list and waits where something is not there yet. If nobody can go
    on although there are actions left, a ScheduleError says why, after all that can be run. The
    schedule is one that `check_actions` lets through; it need not be complete.
    """
    num_stages = count_stages(schedule)
    rows = [deque(row) for row in schedule]
    done: set[Action] = set()
    while any(rows):
        stuck = True
        for device, row in enumerate(rows):
            while row and done.issuperset(needs(row[0], num_stages)):
                action = row.popleft()
                done.add(makes(action))
                stuck = False
                yield device, action
        if stuck:
            raise ScheduleError(_why_stuck(rows, done, num_stages))


def _why_stuck(rows: Sequence[Sequence[Action]], done: set[Action], num_stages: int) -> str:
    """The reason why no device goes on, from what each has left to do."""
    makers = {makes(action): (d, action) for d, row in enumerate(rows) for action in row}
    waits = {}  # device -> its next action, who makes what that needs, and the needed action
    for device, row in enumerate(rows):
        if not row:
            continue
        action = row[0]
        need = next(need for need in needs(action, num_stages) if need not in done)
        maker, first = makers.get(need, (None, need))
        if maker is None:
            return f"device {device}: {action} needs {first}, which no device does"
        if maker == device:
            return f"device {device}: {action} comes before {first}; {_rule(action, first)}"
        waits[device] = action, maker, first
    # every device waits for another one that waits as well: going from one to the next must end in
    # a circle
    chain = [min(waits)]
    while chain[-1] not in chain[:-1]:
        chain.append(waits[chain[-1]][1])
    circle = sorted(chain[chain.index(chain[-1]) : -1])
    words = [
        f"device {device} waits with {action} for {first} of device {maker}"
        for device in circle
        for action, maker, first in [waits[device]]
    ]
    return f"deadlock: {', '.join(words)}"


def _rule(action: Action, needed: Action) -> str:
    if action.kind == "W":
        return "W comes after I"
    if action.kind == "F":
        return "a stage's forward comes after that of the stage before it"
    if needed.kind == "F":
        return "a backward comes after its forward"
    return "a stage's backward comes after that of the stage after it"
