"""Solutions: a schedule by hand, GPipe and 1F1B, a deadlock, split backwards."""

from mpcourse.schedules.actions import Action, makes, needs
from mpcourse.schedules.builder import Builder
from mpcourse.schedules.standard import one_f_one_b_schedule

my_schedule = (
    Builder(3, 4, max_activations=2)
    .add("0F0 0F1 1F0 1F1 2F0 2B0 2F1 1B0 2B1 1B1 0B0 0F2 0B1 0F3")
    .add("1F2 1F3 2F2 2B2 2F3 1B2 2B3 1B3 0B2 0B3")
    .schedule
)
"""
Under this cap, device 1 is the narrow place: 1F1B would have it take one forward, one backward, in
turn, and each of its neighbours would wait for it in turn. Taking two forwards and then two
backwards, it feeds device 2 twice and then device 0 twice. Both neighbours have something to do
meanwhile, and the step takes 21 in place of 24.
"""


def my_gpipe(num_stages, num_microbatches):
    """Every device does all its forwards, then all its backwards, both in order.

    Nothing stands for waiting: a device waits by itself for what it needs. The stage is that of the
    device, so only the first number differs between the lists.
    """
    return [
        [Action(rank, kind, index) for kind in "FB" for index in range(num_microbatches)]
        for rank in range(num_stages)
    ]


def my_one_f_one_b(num_stages, num_microbatches):
    """Device r runs num_stages - r forwards ahead, then one backward and one forward in turn.

    So many forwards pass before the first gradient can come back to it. There are never more than
    there are micro-batches. At the end, as many backwards are left as it was ahead.
    """
    schedule = []
    for rank in range(num_stages):
        ahead = min(num_microbatches, num_stages - rank)
        kinds = "F" * ahead + "BF" * (num_microbatches - ahead) + "B" * ahead
        count = {"F": 0, "B": 0}
        row = []
        for kind in kinds:
            row.append(Action(rank, kind, count[kind]))
            count[kind] += 1
        schedule.append(row)
    return schedule


def my_stuck(schedule, num_stages):
    """Go round all devices, let each go on as far as it can, until a round gets nobody further.

    What a device waits for may be done by a later one, so one round is not enough. `makes` turns I
    into the B that `needs` asks for. Who is not at the end of its list then waits for ever.
    """
    done, position, moved = set(), [0] * len(schedule), True
    while moved:
        moved = False
        for device, row in enumerate(schedule):
            while position[device] < len(row):
                action = row[position[device]]
                if any(need not in done for need in needs(action, num_stages)):
                    break
                done.add(makes(action))
                position[device] += 1
                moved = True
    pairs = zip(schedule, position, strict=True)
    return [row[place] if place < len(row) else None for row, place in pairs]


def my_split_backward(num_stages, num_microbatches):
    """Take 1F1B, put I in the place of B, and let each W wait: device r keeps r of them back.

    The device before waits for I only, which comes earlier by the length of a W at every stage.
    1F1B holds num_stages - r on device r, so there is room for r more: those W fill the holes at
    the end. On device 0 each W follows its I at once, and the cap holds.
    """
    schedule = []
    for rank, row in enumerate(one_f_one_b_schedule(num_stages, num_microbatches)):
        split, waiting = [], []
        for action in row:
            split.append(action._replace(kind="I") if action.kind == "B" else action)
            if action.kind == "B":
                waiting.append(action._replace(kind="W"))
            if len(waiting) > rank:
                split.append(waiting.pop(0))
        schedule.append(split + waiting)
    return schedule
