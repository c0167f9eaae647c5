"""What the tests of schedules share: drawings, a second and slow checker, schedules of any size."""

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product
from textwrap import dedent

from hypothesis import strategies as st

from mpcourse.schedules.actions import Action, Schedule, makes, needs
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import (
    gpipe_schedule,
    interleaved_schedule,
    naive_schedule,
    one_f_one_b_schedule,
)
from mpcourse.schedules.timeline import Timeline
from mpcourse.schedules.zero_bubble import zero_bubble_schedule

ONE_EACH = Costs(1, 1, input_backward=1, weight_backward=1)


def parse(text: str) -> Schedule:
    """A schedule from one line of actions per device: `0F0 0B0`."""
    lines = dedent(text).strip().splitlines()
    return [[Action(int(w[0]), w[1], int(w[2])) for w in line.split()] for line in lines]


def orders(schedule: Schedule) -> str:
    return "\n".join(" ".join(map(str, actions)) for actions in schedule)


def drawing(schedule: Schedule) -> list[str]:
    """A line per device and a column per unit of time, if F, B, I and W take one unit each.

    With one stage per device the stage is left out.
    """
    timeline = simulate(schedule, ONE_EACH)
    first = 1 if all(len({a.stage_index for a in row}) == 1 for row in schedule) else 0
    width = max(len(str(event.action)) for event in timeline.events) - first
    lines = []
    for device in range(timeline.num_devices):
        cells = [" " * width] * round(timeline.makespan)
        for event in timeline.events:
            if event.device_index == device:
                cells[round(event.start)] = str(event.action)[first:].ljust(width)
        lines.append(f"{device}   {' '.join(cells)}".rstrip())
    return lines


def spans(timeline: Timeline) -> str:
    """When each action runs, as in `0F0@0-1 0B0@1-3`."""
    return " ".join(f"{e.action}@{e.start:g}-{e.end:g}" for e in timeline.events)


def is_legal(schedule: Schedule, num_stages: int, num_microbatches: int) -> bool:
    """The rules again, written as differently as possible: sets, and a graph without a cycle."""
    actions = [action for row in schedule for action in row]
    wanted = set(product(range(num_stages), range(num_microbatches)))
    found = {(a.stage_index, a.microbatch_index) for a in actions}
    for stage, microbatch in wanted:
        kinds = [
            a.kind for a in actions if (a.stage_index, a.microbatch_index) == (stage, microbatch)
        ]
        if sorted(kinds) not in (["B", "F"], ["F", "I", "W"]):
            return False
    for stage in range(num_stages):
        if sum(any(a.stage_index == stage for a in row) for row in schedule) != 1:
            return False
    graph: dict[Action, set[Action]] = {action: set() for action in actions}
    for row in schedule:
        for before, after in pairwise(row):
            graph[after].add(before)
    for after, before in product(actions, actions):
        if after.microbatch_index == before.microbatch_index and _feeds(before, after):
            graph[after].add(before)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return found == wanted


def _feeds(before: Action, after: Action) -> bool:
    step = after.stage_index - before.stage_index
    return (before.kind + after.kind, step) in {
        ("FF", 1),
        ("FB", 0),
        ("FI", 0),
        ("BB", -1),
        ("BI", -1),
        ("IB", -1),
        ("II", -1),
        ("IW", 0),
    }


ONE_STAGE_EACH: dict[str, Callable[[int, int], Schedule]] = {
    "naive": naive_schedule,
    "gpipe": gpipe_schedule,
    "1f1b": one_f_one_b_schedule,
    "zb-h1": lambda p, m: zero_bubble_schedule(p, m, "h1"),
    "zb-h2": lambda p, m: zero_bubble_schedule(p, m, "h2"),
}


@st.composite
def legal_schedules(draw: st.DrawFn, most: int = 6) -> tuple[Schedule, int, int]:
    """(schedule, num_stages, num_microbatches) of any schedule function, in any size it takes."""
    devices = draw(st.integers(1, most), label="devices")
    microbatches = draw(st.integers(1, 2 * most), label="microbatches")
    name = draw(st.sampled_from([*ONE_STAGE_EACH, "zb-v", "interleaved"]), label="name")
    if name in ONE_STAGE_EACH:
        return ONE_STAGE_EACH[name](devices, microbatches), devices, microbatches
    if name == "zb-v":
        return zero_bubble_schedule(devices, microbatches, "v"), 2 * devices, microbatches
    rounds = max(1, microbatches // devices)
    microbatches -= microbatches % rounds
    chunks = draw(st.integers(1, 3), label="stages per device")
    schedule = interleaved_schedule(devices, microbatches, chunks)
    return schedule, devices * chunks, microbatches


@st.composite
def random_schedules(draw: st.DrawFn) -> tuple[Schedule, int, int]:
    """(schedule, num_stages, num_microbatches) of any legal order, not only those with a name.

    1 to 3 devices with 1 or 2 stages each, placed anyhow; each backward whole or split by itself.
    """
    per_device = [draw(st.integers(1, 2)) for _ in range(draw(st.integers(1, 3), label="devices"))]
    homes = [device for device, count in enumerate(per_device) for _ in range(count)]
    homes = draw(st.permutations(homes), label="the device of each stage")
    num_stages, num_microbatches = len(homes), draw(st.integers(1, 4), label="microbatches")
    left = []
    for stage, microbatch in product(range(num_stages), range(num_microbatches)):
        kinds = draw(st.sampled_from(["FB", "FIW"]))
        left += [Action(stage, kind, microbatch) for kind in kinds]
    schedule: Schedule = [[] for _ in per_device]
    done: set[Action] = set()
    while left:
        ready = [a for a in left if done.issuperset(needs(a, num_stages))]
        action = draw(st.sampled_from(ready))
        left.remove(action)
        done.add(makes(action))
        schedule[homes[action.stage_index]].append(action)
    return schedule, num_stages, num_microbatches


def damage(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    """A schedule after one to three deletions, duplications, swaps or changes of kind."""
    rows = [list(row) for row in schedule]
    for _ in range(draw(st.integers(1, 3))):
        places = [(d, i) for d, row in enumerate(rows) for i in range(len(row))]
        (d, i), (e, j) = (draw(st.sampled_from(places)) for _ in range(2))
        what = draw(st.sampled_from(["delete", "duplicate", "swap", "move", "change"]))
        if what == "delete":
            del rows[d][i]
        elif what == "duplicate":
            rows[e].insert(j, rows[d][i])
        elif what == "swap":
            rows[d][i], rows[e][j] = rows[e][j], rows[d][i]
        elif what == "move":  # later or earlier on its own device: often still legal
            rows[d].insert(draw(st.integers(0, len(rows[d]) - 1)), rows[d].pop(i))
        else:
            rows[d][i] = rows[d][i]._replace(kind=draw(st.sampled_from("FBIW")))
        if not any(rows):
            break
    return rows
