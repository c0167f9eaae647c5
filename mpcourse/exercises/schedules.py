"""Exercises of page `schedules`: GPipe, a simulator, 1F1B, one by hand, interleaved."""

import inspect
from collections.abc import Mapping
from numbers import Integral, Real

import torch

from mpcourse.exercises.exercise import NO_RETURN, Exercise, NotYet, refuse_borrowed, short
from mpcourse.schedules.actions import Action, ScheduleError, needs, number_actions
from mpcourse.schedules.builder import UNITS, Builder
from mpcourse.schedules.named import make_schedule
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import (
    gpipe_schedule,
    interleaved_schedule,
    naive_schedule,
    one_f_one_b_schedule,
)
from mpcourse.schedules.validate import validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule

# What all of them share: a schedule that somebody wrote

NO_SCHEDULE = "A schedule is a list with one list per device; "
NOTHING_WAITS = "None stands in it: nothing stands for waiting, a device waits by itself."
NO_ACTION = (
    "Each entry is an Action(stage_index, kind, index): whole number, letter, whole number; got {}."
)
NAIVE = "One micro-batch at a time: that is the naive schedule."
AHEAD = "Each kind is in order, but the forwards before the first B are not as many as asked"
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
                raise NotYet(NO_ACTION.format(short(entry)))
    return [
        [Action(int(stage), kind, int(index)) for stage, kind, index in row] for row in schedule
    ]


def rows_of(*kinds):
    return [number_actions([each]) for each in enumerate(kinds)]


def text_of(row):
    return " ".join(map(str, row)) or "nothing"


def written_without(package):
    """A world in which the package's own function, also by its name, is refused."""
    instead = "write the order yourself."

    def play(attempt, *size):
        refuse_borrowed(attempt, {package.__name__, "make_schedule"}, instead)
        if inspect.unwrap(attempt) is package:
            raise NotYet(f"That is the package's own: {instead}")
        return as_actions(attempt(*size))

    return play


def first_row_that_differs(outcome, expected):
    if len(outcome) != len(expected):
        return [f"expected {len(expected)} lists, got {len(outcome)}"]
    pairs = enumerate(zip(outcome, expected, strict=True))
    device, got, wanted = next((d, g, e) for d, (g, e) in pairs if g != e)
    return [f"expected on device {device}: {text_of(wanted)}", f"got: {text_of(got)}"]


def why_wrong(outcome, expected):
    wanted = [action for row in expected for action in row]
    size = max(a.stage_index for a in wanted) + 1, max(a.microbatch_index for a in wanted) + 1
    try:
        validate_schedule(outcome, *size)
    except ScheduleError as error:
        return f"It cannot run: {error}."
    both = outcome, expected  # sorting keeps the order within a kind
    got, asked = ([sorted(row, key=lambda action: action.kind) for row in each] for each in both)
    if got == asked:
        got, asked = ([text_of(row).split("B")[0].count("F") for row in each] for each in both)
        if got != asked:
            return f"{AHEAD}: on the devices {got}, not {asked}."
    run = simulate(outcome, UNITS)
    return f"It is legal, but another order: time {run.makespan:g}, held {run.peak_activations}."


SIZES = {
    "cases": [(1, 2), (2, 3), (3, 5), (4, 2), (5, 7)],
    "given": "{} stage(s) and {} micro-batches",
    "compared": first_row_that_differs,
    "hint": why_wrong,
    "correct": "All {count} sizes agree, also fewer micro-batches than stages.",
}


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


def backwards_turned(p, m):
    return [row[:m] + row[m:][::-1] for row in my_gpipe(p, m)]


check_gpipe = Exercise(
    my_gpipe,
    read_again='"What is a schedule?"',
    play=written_without(gpipe_schedule),
    **SIZES,
    wrong={
        "That is the package's own": gpipe_schedule,
        "make_schedule did the work": lambda p, m: make_schedule("gpipe", p, p, m),
        NAIVE: [naive_schedule, lambda p, m: tuple(map(tuple, naive_schedule(p, m)))],
        TURNED: backwards_turned,
        "One list per device, not one per micro-batch.": (
            "rank in range(num_stages) => index in range(num_microbatches)",
            "index in range(num_microbatches)] => rank in range(num_stages)]",
        ),
        "expected 1 lists, got 2": lambda p, m: my_gpipe(m, p),
        "The numbers are swapped: first the stage, then the kind, then the micro-batch.": (
            "rank, kind, index => index, kind, rank"
        ),
        "Stage r is on device r, so the first list is that of stage 0.": (
            "in range(num_stages) => in reversed(range(num_stages))"
        ),
        "Whole backwards are asked for: B, no I and no W.": '"FB" => "FIW"',
        "which is not in 0 to 1": lambda p, m: my_gpipe(p, m + 1),
        NOTHING_WAITS: lambda p, m: [[None, *row] for row in my_gpipe(p, m)],
        f"{NO_SCHEDULE}got tensor": lambda p, m: torch.zeros(p, m),
        f"{NO_SCHEDULE}in it stands": lambda p, m: my_gpipe(p, m)[0],
        NO_ACTION.format("'0F0'"): 'Action(rank, kind, index) => f"{rank}{kind}{index}"',
        NO_ACTION.format("(0, 'F')"): "Action(rank, kind, index) => (rank, kind)",
    },
    also_right=[
        lambda p, m: tuple(tuple(map(tuple, row)) for row in my_gpipe(p, m)),
        "in range(num_microbatches) => in torch.arange(num_microbatches).numpy()",
    ],
)

# 2. The simulator; 5. its line for transfers


def my_simulate(schedule, cost):
    """Go round the devices, let each go on while what its next action needs has an end.

    What is missing may come from a later device: so go round until nobody has moved. An action
    starts at the latest of these ends and of the end of what its device did before.
    """
    num_stages = 1 + max(action.stage_index for row in schedule for action in row)
    end, free, rows = {}, [0] * len(schedule), [list(row) for row in schedule]
    moved = True
    while moved:
        moved = False
        for device, row in enumerate(rows):
            while row and all(need in end for need in needs(row[0], num_stages)):
                action = row.pop(0)
                arrived = [end[need] for need in needs(action, num_stages)]
                end[action] = free[device] = max([free[device], *arrived]) + cost[action.kind]
                moved = True
    return end


def my_simulate_transfers(schedule, cost, transfer):
    """One line is new: what comes from another device arrives later, by a transfer.

    The stage of each device tells who is another. The transfer is added to the arrival, not to
    the action: the device is free meanwhile.
    """
    home = {action.stage_index: device for device, row in enumerate(schedule) for action in row}
    end, free, rows = {}, [0] * len(schedule), [list(row) for row in schedule]
    moved = True
    while moved:
        moved = False
        for device, row in enumerate(rows):
            while row and all(need in end for need in needs(row[0], len(home))):
                action = row.pop(0)
                arrived = [
                    end[need] + transfer * (home[need.stage_index] != device)
                    for need in needs(action, len(home))
                ]
                end[action] = free[device] = max([free[device], *arrived]) + cost[action.kind]
                moved = True
    return end


NEVER = "it can never start: leave it out of the dict."
STAGES = "A device may have several stages: num_stages is not the number of devices."
EMPTIED = "The schedule is not whole any more: let your function take actions from copies."


def ends_as_text(attempt, schedule, *case):
    refuse_borrowed(attempt, {"simulate"}, "let your own loop do it.")
    before = [list(row) for row in schedule]
    ends = attempt(schedule, *case)
    if not isinstance(ends, Mapping):
        why = NO_RETURN if ends is None else f"got {short(ends)}."
        raise NotYet(f"A dict is asked for: each action with the time at which it ends; {why}")
    if not all(isinstance(each, tuple) and len(each) == 3 for each in ends):
        raise NotYet("The keys are the Actions themselves, not their texts or parts.")
    if not all(isinstance(end, Real) for end in ends.values()):
        raise NotYet("Each action in it has one number, its end; what cannot run is not in it.")
    if schedule != before:
        raise NotYet(EMPTIED)
    return {str(Action(*action)): float(end) for action, end in ends.items()}


def first_end_that_differs(ends, expected):
    for action in sorted(expected, key=expected.get):
        if ends.get(action) != expected[action]:
            got = (
                f"got {ends[action]:g}"
                if action in ends
                else "it has no end: go round until nobody moves"
            )
            return [f"expected {action} to end at {expected[action]:g}", got]
    return [f"{next(a for a in ends if a not in expected)} has an end; {NEVER}"]


def case_in_words(schedule, cost, *transfer):
    rows = "; ".join(f"device {device}: {text_of(row)}" for device, row in enumerate(schedule))
    crossing = "".join(f", a transfer {time}" for time in transfer)
    return f"{rows}; F takes {cost['F']}, B {cost['B']}{crossing}"


SIMULATOR = {
    "given": case_in_words,
    "play": ends_as_text,
    "compared": first_end_that_differs,
    "errors": {
        r"KeyError: \d": "A device may have several stages: each of them is in the schedule.",
        "had not returned|RecursionError|KeyError: A": "Stop when a whole round over the devices "
        "gets none any further: the rest has no end.",
        "(?i)deadlock": "Raise nothing: what waits for ever gets no end, the rest gets one.",
    },
}
IN_A_CIRCLE = rows_of("FBFB", "FFBB")
V_LAYOUT = [  # stages 0 and 3 on device 0, stages 1 and 2 on device 1
    number_actions([(0, "F"), (3, "FB"), (0, "B")]),
    number_actions([(1, "F"), (2, "FB"), (1, "B")]),
]

check_simulate = Exercise(
    my_simulate,
    read_again='"How long does it take?"',
    cases=[
        (gpipe_schedule(2, 1), {"F": 1, "B": 2}),
        (one_f_one_b_schedule(2, 3), {"F": 2, "B": 3}),
        (one_f_one_b_schedule(3, 4)[::-1], {"F": 1, "B": 2}),
        (interleaved_schedule(2, 2, 2), {"F": 0.5, "B": 1}),
        (IN_A_CIRCLE, {"F": 1, "B": 2}),
    ],
    hint="An action starts at the latest of two: its device is free, all that it needs has ended.",
    correct="All {count} schedules end when they should; the last one waits for ever, in part.",
    **SIMULATOR,
    wrong={
        "Waits are shared: it starts at the latest of these times, not after their sum.": (
            "max([ => sum(["
        ),
        "A device does one thing at a time: it is busy until its previous action ends.": [
            "[free[device], *arrived] => [0, *arrived]",
            ("free[device] => free[action.stage_index]", "len(schedule) => num_stages"),
        ],
        "Each device has a time of its own: one works while another does.": (
            "free[device] => free[0]"
        ),
        "What needs(action, num_stages) lists has to end first.": ", *arrived => ",
        "All that needs(action, num_stages) lists has to end first, not the first of it alone.": (
            "num_stages) => num_stages)[:1]"
        ),
        "An action takes cost[action.kind].": [
            "cost[action.kind] => 1",
            'cost[action.kind] => {"F": 1, "B": 2}[action.kind]',
        ],
        "A cost may be half a unit: add it as it is, count no whole units.": (
            "+ cost[action.kind] => - -cost[action.kind] // 1"
        ),
        "A device takes its actions in order: what stands later waits, even if it could go.": (
            "while row and all(need in end for need in needs(row[0], num_stages)) => "
            "for a in (a for a in [*row] if all(need in end for need in needs(a, num_stages)))",
            "row.pop(0) => row.pop(row.index(a))",
        ),
        "num_stages is one more than the largest stage_index: they are counted from 0.": (
            "1 + max( => max("
        ),
        NEVER: "return end => return {action: 0 for row in schedule for action in row} | end",
        "Raise nothing: what waits for ever gets no end, the rest gets one.": (
            "return end => assert not any(rows), 'a deadlock'; return end"
        ),
        "One round over the devices is not enough: what is missing may come from a later one.": (
            "while moved: => for _ in range(1):"
        ),
        STAGES: "num_stages) => len(schedule))",
        "That is when it starts; asked is when it ends.": (
            "return end => return {action: end[action] - cost[action.kind] for action in end}"
        ),
        "A dict is asked for": ["return end => return max(end.values())", "return end => "],
        "not their texts": "return end => return {str(action): end[action] for action in end}",
        "Each action in it has one number": (
            "return end => return {action: (0, end[action]) for action in end}"
        ),
        EMPTIED: "[list(row) for row in schedule] => schedule",
        "simulate did the work": lambda schedule, cost: {
            e.action: e.end for e in simulate(schedule, Costs(cost["F"], cost["B"])).events
        },
    },
    also_right=["while moved: => for _ in range(99):"],
)


def ending_at_the_arrival(schedule, cost, transfer):
    home = {action.stage_index: device for device, row in enumerate(schedule) for action in row}
    ends = my_simulate_transfers(schedule, cost, transfer)
    for action in list(ends):
        for need in needs(action, len(home)):
            ends[need] += transfer * (home[need.stage_index] != home[action.stage_index])
    return ends


check_transfers = Exercise(
    my_simulate_transfers,
    read_again='"What if a transfer takes time?"',
    cases=[
        (gpipe_schedule(2, 2), {"F": 1, "B": 2}, 3),
        (interleaved_schedule(1, 2, 2), {"F": 1, "B": 2}, 3),
        (interleaved_schedule(2, 4, 2), {"F": 2, "B": 3}, 1),
        (V_LAYOUT, {"F": 1, "B": 2}, 3),
        (interleaved_schedule(3, 3, 2), {"F": 1, "B": 2}, 0.5),
    ],
    hint="A transfer delays what comes from another device; it keeps no device busy.",
    **SIMULATOR,
    wrong={
        "No transfer is in it yet.": "transfer * => 0 *",
        "It takes `transfer`, once for each thing that arrives.": [
            f"transfer * => {each} *" for each in ("1", "3", "int(transfer)", "2 * transfer")
        ],
        "What lies on the same device needs no transfer.": (
            "home[need.stage_index] != device => True"
        ),
        "Neighbouring stages may be on one device: ask which device has a stage.": (
            "home[need.stage_index] != device => need.stage_index != action.stage_index"
        ),
        "The schedule says which device has a stage; it is not always stage % devices.": (
            "home[need.stage_index] => need.stage_index % len(schedule)"
        ),
        "A transfer takes as long between any two devices.": (
            "(home[need.stage_index] != device) => abs(home[need.stage_index] - device)"
        ),
        "An action ends when its device is done, not when its result has arrived.": (
            ending_at_the_arrival
        ),
        "An output crosses as well, on the way there.": (
            "!= device => != device and need.kind == 'B'"
        ),
        STAGES: "len(home) => len(schedule)",
        "A gradient crosses as well, on the way back.": (
            "!= device => != device and need.kind == 'F'"
        ),
        "A transfer keeps no device busy: add it to what arrives, not to the action.": (
            "transfer * => 0 *",
            "cost[action.kind] => cost[action.kind] + transfer",
        ),
        "It delays the arrival, not the start: a device that was busy meanwhile waits less.": (
            "transfer * => 0 *",
            "cost[action.kind] => cost[action.kind] + transfer * any("
            "home[need.stage_index] != device for need in needs(action, len(home)))",
        ),
    },
    also_right=["while moved: => for _ in range(99):"],
)

# 3. 1F1B


def my_one_f_one_b(num_stages, num_microbatches):
    """Device r runs num_stages - r forwards ahead, then one backward and one forward in turn.

    So many forwards pass before the first gradient can come back to it. There are never more than
    there are micro-batches. At the end, as many backwards are left as it was ahead.
    """
    schedule = []
    for rank in range(num_stages):
        ahead = min(num_microbatches, num_stages - rank)
        kinds = "F" * ahead + "BF" * (num_microbatches - ahead) + "B" * ahead
        row = number_actions([(rank, kinds)])
        schedule.append(row)
    return schedule


def last_in_first_out(p, m):
    schedule = my_one_f_one_b(p, m)
    for row in schedule:
        held = []
        for place, action in enumerate(row):
            if action.kind == "F":
                held.append(action.microbatch_index)
            else:
                row[place] = action._replace(microbatch_index=held.pop())
    return schedule


check_one_f_one_b = Exercise(
    my_one_f_one_b,
    read_again='"Who holds how much?"',
    play=written_without(one_f_one_b_schedule),
    **SIZES,
    wrong={
        "That is the package's own": one_f_one_b_schedule,
        "one_f_one_b_schedule did the work": lambda p, m: one_f_one_b_schedule(p, m),
        "That is GPipe: as fast, but device 0 holds every micro-batch.": gpipe_schedule,
        "Its warm-up is one short: device r does num_stages - r forwards before its first B.": (
            "num_stages - rank => max(1, num_stages - rank - 1)"
        ),
        "Its warm-up is one too long: it runs, but every device holds one more.": (
            "num_stages - rank => num_stages - rank + 1"
        ),
        "Twice the warm-up: as fast, but it holds nearly twice as much.": (
            "num_stages - rank => 2 * (num_stages - rank) - 1"
        ),
        "There are never more forwards ahead than there are micro-batches.": (
            "min(num_microbatches, num_stages - rank) => num_stages - rank"
        ),
        "Every device warms up like device 0: legal, but the later ones hold too much.": (
            "num_stages - rank => num_stages"
        ),
        "Its warm-up grows with the device: the first one needs the longest.": (
            "num_stages - rank => rank + 1"
        ),
        NAIVE: naive_schedule,
        TURNED: [backwards_turned, last_in_first_out],
        "comes before 0F0; a backward comes after its forward": (
            "num_stages - rank => num_stages - rank - 1"
        ),
        "It is legal, but another order: time": (
            "return schedule => row[1:4] = row[2], row[3], row[1]; return schedule"
        ),
        "which is not in 0 to 1": lambda p, m: my_one_f_one_b(p, m + 1),
    },
    also_right=[
        (
            "* ahead => * (ahead - 1)",
            '"BF" * (num_microbatches - ahead) => "FB" * (num_microbatches - ahead + 1)',
        )
    ],
)

# 4. A schedule by hand: 3 stages, 4 micro-batches, at most 2 held, in less than 24

BOARD = "This is the board; its schedule is board.schedule."
WHOLE = "Whole backwards are asked for here: B, no I and no W."
INCOMPLETE = "The board is not complete yet."
REFUSED = "The board refuses such a move."
NO_OVERLAP = "Nothing overlaps yet: the cap allows two micro-batches under way."
DEVICE_1 = "Device 1 decides: what keeps both of its neighbours at work?"
NEIGHBOUR = {
    0: "Device 1 is at its best: device 0 could hand over to it sooner.",
    2: "Device 1 is at its best: device 2 could hand back to it sooner.",
}


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


def no_board(attempt):
    if hasattr(attempt, "schedule"):
        raise NotYet(BOARD)
    return as_actions(attempt)


def time_on_the_board(outcome):
    schedule = as_actions(outcome)
    if any(action.kind in "IW" for row in schedule for action in row):
        raise NotYet(WHOLE)
    try:
        validate_schedule(schedule, 3, 4, max_activations=2)
    except ScheduleError as error:
        raise NotYet(str(error), INCOMPLETE if "is missing" in str(error) else REFUSED) from None
    if len(schedule) != 3:
        raise NotYet(f"Three devices have a list each: one for each stage; got {len(schedule)}.")
    time = simulate(schedule, UNITS).makespan
    if time >= 24:
        kinds = {row[0].stage_index: [action.kind for action in row] for row in schedule}
        slow = 2 if kinds[2] == list("FFBBFFBB") else 0
        why = NEIGHBOUR[slow] if kinds[1] == list("FFBBFFBB") else DEVICE_1
        why = NO_OVERLAP if time == simulate(naive_schedule(3, 4), UNITS).makespan else why
        raise NotYet(f"Legal, and it takes {time:g}; less than 24 is asked for.", why)
    return time


check_board = Exercise(
    my_board,
    read_again='"Can you beat 24?"',
    play=no_board,
    look=time_on_the_board,
    correct="It takes {outcome:g}, and nobody holds more than 2; with whole backwards the best "
    "is 21.",
    values=True,
    wrong={
        DEVICE_1: [rows_of("FFBFBFBB", "FFBFBFBB", "FBFBFBFB")],
        NEIGHBOUR[0]: [rows_of("FFBBFFBB", "FFBBFFBB", "FBFBFBFB")],
        NEIGHBOUR[2]: [
            rows_of(*["FFBBFFBB"] * 3),
            rows_of("FFBFBFBB", "FFBBFFBB", "FFBBFFBB"),
        ],
        NO_OVERLAP: [naive_schedule(3, 4)],
        "device 0: 0F2 makes it hold 3 activations": [one_f_one_b_schedule(3, 4)],
        REFUSED: [gpipe_schedule(3, 4)],
        INCOMPLETE: [Builder(3, 4, 2).add("0F0 1F0").schedule],
        "2F0 is missing: no device has stage 2": [one_f_one_b_schedule(2, 4)],
        BOARD: [Builder(3, 4, 2)],
        "Three devices have a list each": [[*my_board(), []], [[], *naive_schedule(3, 4)]],
        WHOLE: [zero_bubble_schedule(3, 4, "h1")],
        f"{NO_SCHEDULE}got 7": [7],
        f"{NO_SCHEDULE}got '0F0'": ["0F0"],
        NO_ACTION.format("'0F0'"): [[["0F0"], [], []]],
        NO_ACTION.format(("a", "F", 0)): [[[Action("a", "F", 0)]]],
        NO_ACTION.format((0, 1, 0)): [[[Action(0, 1, 0)]]],
    },
    also_right=[
        rows_of("FFBFBFBB", "FFBBFFBB", "FBFBFFBB")[::-1],  # takes 23, devices in another order
        [tuple(map(tuple, row)) for row in my_board()],
    ],
)

# 6. The order inside an interleaved schedule

CHUNKS = "Device r has the stages r, r + num_devices, …: neighbours lie on neighbouring devices."
ROUNDS = "A round is num_devices micro-batches: so many through one chunk, then through the next."
LAST_FIRST = "Backwards begin with the device's last chunk: a gradient comes down the model."


def my_interleaved(num_devices, num_microbatches, num_chunks):
    """Rounds of num_devices micro-batches: a round through one chunk, then through the next.

    Backwards go in the same rounds, from the last chunk to the first. So many forwards are ahead,
    then one forward and one backward follow in turn, and at the end the backwards that are left.
    """
    p, m = num_devices, num_microbatches
    order = [
        (chunk, index)
        for first in range(0, m, p)
        for chunk in range(num_chunks)
        for index in range(first, first + p)
    ]
    schedule = []
    for rank in range(p):
        forwards = [Action(rank + p * chunk, "F", i) for chunk, i in order]
        backwards = [Action(rank + p * (num_chunks - 1 - chunk), "B", i) for chunk, i in order]
        ahead = min(len(order), (num_chunks - 1) * p + 2 * (p - 1 - rank))
        row = forwards[:ahead]
        for pair in zip(forwards[ahead:], backwards, strict=False):
            row += pair
        schedule.append(row + backwards[len(order) - ahead :])
    return schedule


check_interleaved = Exercise(
    my_interleaved,
    read_again='"In which order does a device take its chunks?"',
    cases=[(1, 1, 2), (2, 2, 2), (2, 4, 2), (3, 3, 2), (3, 6, 2), (2, 4, 3)],
    given="{} device(s), {} micro-batch(es), {} chunks a device",
    play=written_without(interleaved_schedule),
    compared=first_row_that_differs,
    hint=why_wrong,
    wrong={
        ROUNDS: [
            ("range(0, m, p) => [0]", "first + p => m"),
            ("range(0, m, p) => range(m)", "first + p => first + 1"),
            (
                "range(0, m, p) => range(0, m, num_chunks)",
                "first + p => min(m, first + num_chunks)",
            ),
        ],
        LAST_FIRST: "num_chunks - 1 - chunk => chunk",
        CHUNKS: "rank + p * => rank * num_chunks +",
        AHEAD: [
            "(num_chunks - 1) * p + 2 * (p - 1 - rank) => p - rank",
            "(p - 1 - rank) => (p - 1 - rank) + 1",
            "2 * (p - 1 - rank) => (p - 1 - rank)",
            "(num_chunks - 1) * p + 2 * (p - 1 - rank) => num_chunks * (p - rank)",
            "min(len(order), => max(len(order),",
            "(num_chunks - 1) * p + => ",
        ],
        "A device has micro-batches times chunks forwards: it takes no more of them ahead.": (
            "min(len(order), => max(0,"
        ),
        "A turn is one forward, then one backward: here the backward comes first.": (
            "row += pair => row += pair[::-1]"
        ),
        "A device has num_chunks stages, not one.": lambda p, m, v: gpipe_schedule(p, m),
        "One list per device, not one per stage.": lambda p, m, v: gpipe_schedule(p * v, m),
        "interleaved_schedule did the work": lambda p, m, v: interleaved_schedule(p, m, v),
        "That is the package's own": interleaved_schedule,
    },
    also_right=[
        "schedule = [] => order = sorted(sorted(order), key=lambda at: at[1] // p); schedule = []"
    ],
)
