"""Exercises of page `schedules`: GPipe, 1F1B, a deadlock, a schedule by hand."""

from numbers import Integral

import numpy as np
import torch

from mpcourse.exercises.exercise import Exercise, NotYet, short
from mpcourse.schedules.actions import Action, ScheduleError, makes, needs, number_actions
from mpcourse.schedules.builder import UNITS, Builder
from mpcourse.schedules.simulation import simulate
from mpcourse.schedules.standard import gpipe_schedule, naive_schedule, one_f_one_b_schedule
from mpcourse.schedules.validate import validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule

# What all of them share: a schedule that somebody wrote

NO_SCHEDULE = "A schedule is a list with one list per device; "
NOTHING_WAITS = "None stands in it: nothing stands for waiting, a device waits by itself."
NO_NUMBERS = "An Action holds a number, a letter and a number; got {!r}."
NO_ACTION = "Each entry is an Action(stage_index, kind, index); got {}."
NAIVE = "One micro-batch at a time: that is the naive schedule."
TURNED = "Legal, but last in, first out; backwards go first in, first out."


def as_actions(schedule):
    """The schedule as lists of actions, whose numbers are Python's own."""
    if not isinstance(schedule, list | tuple) or isinstance(schedule, Action):
        raise NotYet(f"{NO_SCHEDULE}got {short(schedule)}.")
    for row in schedule:
        if not isinstance(row, list | tuple) or isinstance(row, Action):
            raise NotYet(f"{NO_SCHEDULE}in it stands {short(row)}.")
        for entry in row:
            if entry is None:
                raise NotYet(NOTHING_WAITS)
            is_triple = isinstance(entry, tuple) and len(entry) == 3 and isinstance(entry[1], str)
            if not is_triple or not all(isinstance(number, Integral) for number in entry[::2]):
                known = isinstance(entry, Action)
                raise NotYet(
                    NO_NUMBERS.format(tuple(entry)) if known else NO_ACTION.format(short(entry))
                )
    return [
        [Action(int(stage), kind, int(index)) for stage, kind, index in row] for row in schedule
    ]


def text_of(row):
    return " ".join(map(str, row)) or "nothing"


def in_rows(attempt, *size):
    return as_actions(attempt(*size))


def first_row_that_differs(outcome, expected):
    if len(outcome) != len(expected):
        return [f"expected {len(expected)} lists, got {len(outcome)}"]
    pairs = enumerate(zip(outcome, expected, strict=True))
    device, got, wanted = next((d, g, e) for d, (g, e) in pairs if g != e)
    return [f"expected on device {device}: {text_of(wanted)}", f"got: {text_of(got)}"]


def why_wrong(outcome, expected):
    try:
        validate_schedule(outcome, len(expected), len(expected[0]) // 2)
    except ScheduleError as error:
        return f"It cannot run: {error}."
    run = simulate(outcome, UNITS)
    return f"It is legal, but another order: time {run.makespan:g}, held {run.peak_activations}."


SIZES = {
    "cases": [(1, 2), (2, 3), (3, 5), (4, 2), (5, 7)],
    "given": "{} stage(s) and {} micro-batches",
    "play": in_rows,
    "compared": first_row_that_differs,
    "hint": why_wrong,
    "correct": "All {count} sizes agree, also fewer micro-batches than stages.",
}


def backwards_turned(p, m):
    forwards = [[Action(rank, "F", index) for index in range(m)] for rank in range(p)]
    return [row + [action._replace(kind="B") for action in reversed(row)] for row in forwards]


# 1. GPipe


def my_gpipe(num_stages, num_microbatches):
    """Every device does all its forwards, then all its backwards, both in order.

    Nothing stands for waiting: a device waits by itself for what it needs. The stage is that of the
    device, so only the first number differs between the lists.
    """
    return [
        [Action(rank, kind, index) for kind in "FB" for index in range(num_microbatches)]
        for rank in range(num_stages)
    ]


def by_microbatches(p, m):
    return [[a for row in my_gpipe(p, m) for a in row if a.microbatch_index == i] for i in range(m)]


check_gpipe = Exercise(
    my_gpipe,
    read_again='"What is a schedule?"',
    **SIZES,
    wrong={
        NAIVE: [naive_schedule, lambda p, m: tuple(map(tuple, naive_schedule(p, m)))],
        TURNED: backwards_turned,
        "One list per device, not one per micro-batch.": by_microbatches,
        "expected 1 lists, got 2": lambda p, m: my_gpipe(m, p),
        "which is not in 0 to 1": lambda p, m: my_gpipe(p, m + 1),
        NOTHING_WAITS: lambda p, m: [[None, *row] for row in my_gpipe(p, m)],
        f"{NO_SCHEDULE}got tensor": lambda p, m: torch.zeros(p, m),
        f"{NO_SCHEDULE}in it stands": lambda p, m: my_gpipe(p, m)[0],
        NO_ACTION.format("'0F0'"): lambda p, m: [[str(a) for a in row] for row in my_gpipe(p, m)],
        NO_ACTION.format("(0, 'F')"): lambda p, m: [[(rank, "F")] for rank in range(p)],
    },
    also_right=[
        lambda p, m: tuple(tuple(map(tuple, row)) for row in my_gpipe(p, m)),
        lambda p, m: [
            [Action(r, kind, i) for kind in "FB" for i in np.arange(m)] for r in range(p)
        ],
    ],
)

# 2. 1F1B


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


def warmed_up(forwards):
    """1F1B with another warm-up: so many forwards, given the stages and the device."""

    def attempt(p, m):
        ahead = [min(m, forwards(p, rank)) for rank in range(p)]
        kinds = ["F" * a + "BF" * (m - a) + "B" * a for a in ahead]
        return [number_actions([(rank, row)]) for rank, row in enumerate(kinds)]

    return attempt


def in_pairs(p, m):
    rows = []
    for rank in range(p):
        ahead = min(p - rank - 1, m)
        pairs = [(rank, "F" * (ahead + index < m) + "B") for index in range(m)]
        rows.append(number_actions([(rank, "F" * ahead), *pairs]))
    return rows


def last_stage_turned(p, m):
    rows = one_f_one_b_schedule(p, m)
    kinds = [("F", 0), ("F", 1), ("B", 1), ("B", 0)]
    return [*rows[:-1], [Action(p - 1, *each) for each in kinds] + rows[-1][4:]]


check_one_f_one_b = Exercise(
    my_one_f_one_b,
    read_again='"Who holds how much?"',
    **SIZES,
    wrong={
        "That is GPipe: as fast, but device 0 holds every micro-batch.": gpipe_schedule,
        "Its warm-up is one short: device r does num_stages - r forwards before its first B.": (
            warmed_up(lambda p, rank: max(1, p - rank - 1))
        ),
        "Its warm-up is one too long: it runs, but every device holds one more.": (
            warmed_up(lambda p, rank: p - rank + 1)
        ),
        "Every device warms up like device 0: legal, but the later ones hold too much.": (
            warmed_up(lambda p, rank: p)
        ),
        "Its warm-up grows with the device: the first one needs the longest.": (
            warmed_up(lambda p, rank: rank + 1)
        ),
        NAIVE: naive_schedule,
        TURNED: backwards_turned,
        "comes before 0F0; a backward comes after its forward": warmed_up(
            lambda p, rank: p - rank - 1
        ),
        "It is legal, but another order: time": last_stage_turned,
        "which is not in 0 to 1": lambda p, m: my_one_f_one_b(p, m + 1),
    },
    also_right=[in_pairs],
)

# 3. Where each device stops for ever


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


def stuck_after(rounds, makes):
    """Stop after so many rounds; `makes` says what is done when an action is."""

    def attempt(schedule, num_stages):
        done, rows = set(), [list(row) for row in schedule]
        for _ in range(rounds):
            for row in rows:
                while row and done.issuperset(needs(row[0], num_stages)):
                    done.add(makes(row.pop(0)))
        return [row[0] if row else None for row in rows]

    return attempt


def what_is_missing(schedule, num_stages):
    stuck, done = my_stuck(schedule, num_stages), set()
    for row, head in zip(schedule, stuck, strict=True):
        done |= {makes(each) for each in row[: row.index(head) if head else None]}
    return [a and next(n for n in needs(a, num_stages) if n not in done) for a in stuck]


def listed(outcome, expected):
    def text(entries):
        if not isinstance(entries, list | tuple):
            return short(entries)
        texts = [str(a) if isinstance(a, Action) else short(a) for a in entries]
        return f"[{', '.join(texts)}]"

    return [f"expected {text(expected)}", f"got {text(outcome)}"]


def form_of_stuck(outcome, expected):
    if not isinstance(outcome, list | tuple):
        return "" if outcome is None else "A list is asked for, with one entry per device."
    if not all(entry is None or isinstance(entry, str | tuple) for entry in outcome):
        return "Each entry is an Action or None."
    return "A device goes on while everything in needs(action, num_stages) is done."


one_device_short = [[Action(0, "F", 0)], *gpipe_schedule(2, 2)[1:]]

check_stuck = Exercise(
    my_stuck,
    read_again='"Who waits for whom?"',
    cases=[
        (gpipe_schedule(2, 1), 2),
        (warmed_up(lambda p, rank: rank + 1)(2, 2), 2),
        (one_f_one_b_schedule(4, 5), 4),
        (one_device_short, 2),
        (zero_bubble_schedule(2, 4, "h2"), 2),
        (warmed_up(lambda p, rank: rank + 1)(3, 4), 3),
    ],
    given=lambda schedule, stages: ", ".join(
        f"device {device}: {text_of(row)}" for device, row in enumerate(schedule)
    ),
    compared=listed,
    hint=form_of_stuck,
    correct="All cases agree: those that end, and those that wait for ever.",
    wrong={
        "One round is not enough: what was missing may come from a later device.": (
            stuck_after(1, makes)
        ),
        "needs says B for I as well: remember makes(action) as done, not the action.": (
            stuck_after(99, lambda action: action)
        ),
        "Nobody finishes here: a device that never finishes waits with its next action.": (
            lambda schedule, p: [None] * len(schedule)
        ),
        "One entry per device: None for those that come to their end.": (
            lambda schedule, p: [action for action in my_stuck(schedule, p) if action]
        ),
        "The Action itself is asked for, not its text.": [
            lambda schedule, p: [action and str(action) for action in my_stuck(schedule, p)],
            lambda schedule, p: list(map(str, my_stuck(schedule, p))),
        ],
        "Those are what the devices wait for; asked is the action that each waits with.": (
            what_is_missing
        ),
        "A device goes on while everything in needs": lambda schedule, p: [r[0] for r in schedule],
        "A list is asked for": lambda schedule, p: torch.zeros(len(schedule)),
        "Each entry is an Action or None": lambda schedule, p: [np.zeros(2) for _ in schedule],
        "None is what a function without return": lambda schedule, p: None,
    },
    errors={"": "Stop when a whole round over the devices got none of them any further."},
    also_right=[lambda schedule, p: tuple(a and tuple(a) for a in my_stuck(schedule, p))],
)

# 4. A schedule by hand: 3 stages, 4 micro-batches, at most 2 held, in less than 24

BOARD = "This is the board; its schedule is board.schedule."
WHOLE = "Whole backwards are asked for here: B, no I and no W."
INCOMPLETE = "The board is not complete yet."
REFUSED = "The board refuses such a move."
NO_OVERLAP = "Nothing overlaps yet: the cap allows two micro-batches under way."
DEVICE_1 = "Device 1 decides: what keeps both of its neighbours at work?"
NEIGHBOURS = "Device 1 is at its best: do its neighbours hand over as soon as they can?"


def my_board():
    """Under this cap, device 1 is the narrow place.

    1F1B would have it take one forward, one backward, in turn, and each of its neighbours would
    wait for it in turn. Taking two forwards and then two backwards, it feeds device 2 twice and
    then device 0 twice. Both neighbours have something to do meanwhile, and the step takes 21 in
    place of 24.
    """
    moves = "0F0 0F1 1F0 1F1 2F0 2B0 2F1 1B0 2B1 1B1 0B0 0F2 0B1 0F3 "
    moves += "1F2 1F3 2F2 2B2 2F3 1B2 2B3 1B3 0B2 0B3"
    my_schedule = Builder(3, 4, max_activations=2).add(moves).schedule
    return my_schedule


def time_on_the_board(attempt):
    if hasattr(attempt, "schedule"):
        raise NotYet(BOARD)
    schedule = as_actions(attempt)
    if any(action.kind in "IW" for row in schedule for action in row):
        raise NotYet(WHOLE)
    try:
        validate_schedule(schedule, 3, 4, max_activations=2)
    except ScheduleError as error:
        raise NotYet(str(error), INCOMPLETE if "is missing" in str(error) else REFUSED) from None
    time = simulate(schedule, UNITS).makespan
    if time >= 24:
        kinds = {row[0].stage_index: [action.kind for action in row] for row in schedule}
        why = NEIGHBOURS if kinds[1] == list("FFBBFFBB") else DEVICE_1
        why = NO_OVERLAP if time == simulate(naive_schedule(3, 4), UNITS).makespan else why
        raise NotYet(f"Legal, and it takes {time:g}; less than 24 is asked for.", why)
    return time


def rows_of(*kinds):
    return [number_actions([(rank, row)]) for rank, row in enumerate(kinds)]


check_board = Exercise(
    my_board,
    read_again='"Can you beat 24?"',
    play=time_on_the_board,
    same=None,
    correct="It takes {outcome:g}, and nobody holds more than 2; with whole backwards the best "
    "is 21.",
    values=True,
    wrong={
        DEVICE_1: [rows_of("FFBFBFBB", "FFBFBFBB", "FBFBFBFB")],
        NEIGHBOURS: [rows_of("FFBBFFBB", "FFBBFFBB", "FBFBFBFB"), rows_of(*["FFBBFFBB"] * 3)],
        NO_OVERLAP: [naive_schedule(3, 4)],
        "device 0: 0F2 makes it hold 3 activations": [one_f_one_b_schedule(3, 4)],
        REFUSED: [gpipe_schedule(3, 4)],
        INCOMPLETE: [Builder(3, 4, 2).add("0F0 1F0").schedule],
        "2F0 is missing: no device has stage 2": [one_f_one_b_schedule(2, 4)],
        BOARD: [Builder(3, 4, 2)],
        WHOLE: [zero_bubble_schedule(3, 4, "h1")],
        f"{NO_SCHEDULE}got 7": [7],
        f"{NO_SCHEDULE}got '0F0'": ["0F0"],
        NO_ACTION.format("'0F0'"): [[["0F0"], [], []]],
        NO_NUMBERS.format(("a", "F", 0)): [[[Action("a", "F", 0)]]],
        NO_NUMBERS.format((0, 1, 0)): [[[Action(0, 1, 0)]]],
    },
    also_right=[
        rows_of("FFBFBFBB", "FFBBFFBB", "FBFBFFBB")[::-1],  # takes 23, devices in another order
        [tuple(map(tuple, row)) for row in my_board()],
    ],
)
