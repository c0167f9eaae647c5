"""Exercises of page `schedules`: a simulator, 1F1B, interleaved 1F1B."""

import inspect
from collections.abc import Mapping
from numbers import Integral, Real

from mpcourse.exercises.exercise import Exercise, NotYet, numbers, refuse_borrowed, short
from mpcourse.schedules.actions import Action, ScheduleError, needs, number_actions
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import (
    gpipe_schedule,
    interleaved_schedule,
    naive_schedule,
    one_f_one_b_schedule,
)
from mpcourse.schedules.validate import validate_schedule

# What all of them share: a schedule that somebody wrote

NO_SCHEDULE = "A schedule is a list with one list per device; "
OUT_OF_ORDER = "Legal, but backwards go in the order of the micro-batches: first in, first out."
HOMES = "Stages on the devices: {}, not {}: device r has stage {}."
NO_ACTION = "Each entry is an Action(stage_index, kind, index): number, letter, number; got {}."


def as_actions(schedule):
    """The schedule as lists of actions, whose numbers are Python's own."""
    if not isinstance(schedule, list | tuple) or isinstance(schedule, Action):
        raise NotYet(f"{NO_SCHEDULE}got {short(schedule)}.")
    for row in schedule:
        if not isinstance(row, list | tuple) or isinstance(row, Action):
            raise NotYet(f"{NO_SCHEDULE}in it stands {short(row)}.")
        for entry in row:
            is_triple = isinstance(entry, tuple) and len(entry) == 3 and isinstance(entry[1], str)
            if not is_triple or not all(isinstance(number, Integral) for number in entry[::2]):
                raise NotYet(NO_ACTION.format(short(entry)))
    return [[Action(int(stage), kind, int(i)) for stage, kind, i in row] for row in schedule]


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
    homes = [[sorted({a.stage_index for a in row}) for row in s] for s in (outcome, expected)]
    if homes[0] != homes[1]:
        stage = "r + num_devices * c as its chunk c" if size[0] > len(expected) else "r"
        return HOMES.format(*homes, stage)
    try:
        validate_schedule(outcome, *size)
    except ScheduleError as error:
        return f"Refused: {str(error).replace(', I, W', '').removesuffix(' (I and W do as well)')}."
    done = [action[::2] for row in outcome for action in row if action.kind == "B"]
    if sorted(done, key=lambda each: each[0]) != sorted(done):
        return OUT_OF_ORDER
    got, asked = ([text_of(row).split("B")[0].count("F") for row in s] for s in (outcome, expected))
    if got != asked:
        return f"Forwards before the first B, on the devices: {got}, not {asked}."
    run = simulate(outcome, Costs(1, 2))
    return f"It is legal, but another order: time {run.makespan:g}, held {run.peak_activations}."


# 1. The simulator


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


NEVER = "it can never start: leave it out of the dict."
NOTHING = "What needs nothing starts when its device is free: put that time into the same max."
SAME_DICT = "Two calls gave back the same dict: begin each call with an empty one."
TOO_FAR = "If `free` raised it: its index is a device, and a device may have several stages."
ONE = "If max() raised it: what needs nothing leaves it one number, so give it a list."


def ends_as_text(attempt, schedule, *case):
    refuse_borrowed(attempt, {"simulate"}, "let your own loop do it.")
    before = [list(row) for row in schedule]
    ends = attempt(schedule, *case)
    if not isinstance(ends, Mapping) or not all(isinstance(each, tuple) for each in ends):
        raise NotYet("A dict is asked for: each Action itself with the time at which it ends.")
    if not all(isinstance(numbers(end), Real) for end in ends.values()):
        raise NotYet("Each action in it has one number, its end; what cannot run is not in it.")
    if schedule != before:
        raise NotYet("The schedule is not whole any more: take actions from copies.")
    if attempt(schedule, *case) is ends:
        raise NotYet(SAME_DICT)
    return {str(Action(*action)): float(end) for action, end in ends.items()}


def first_end_that_differs(ends, expected):
    for action in sorted(expected, key=expected.get):
        if ends.get(action) != expected[action]:
            none = "it has no end: go round until nobody moves"
            got = f"got {ends[action]:g}" if action in ends else none
            return [f"expected {action} to end at {expected[action]:g}", got]
    return [f"{next(a for a in ends if a not in expected)} has an end; {NEVER}"]


def case_in_words(schedule, cost):
    rows = "; ".join(f"device {device}: {text_of(row)}" for device, row in enumerate(schedule))
    return f"{rows}; F takes {cost['F']}, B {cost['B']}"


check_simulate = Exercise(
    my_simulate,
    read_again='"How long does it take?"',
    cases=[
        (gpipe_schedule(2, 1), {"F": 1, "B": 2}),
        (one_f_one_b_schedule(2, 3), {"F": 2, "B": 3}),
        (one_f_one_b_schedule(3, 4)[::-1], {"F": 1, "B": 2}),
        (one_f_one_b_schedule(4, 8), {"F": 1, "B": 2}),
        (interleaved_schedule(2, 2, 2), {"F": 0.5, "B": 1}),
        (naive_schedule(2, 16), {"F": 1, "B": 2}),  # in many rounds
        ([number_actions([each]) for each in enumerate(["FBFB", "FFBB"])], {"F": 1, "B": 2}),
    ],
    given=case_in_words,
    play=ends_as_text,
    compared=first_end_that_differs,
    hint="An action starts at the latest of two: its device is free, all that it needs has ended.",
    correct="All {count} schedules end when they should; the last one waits for ever, in part.",
    errors={
        "iterable argument is empty|empty sequence": NOTHING,
        "TypeError: '(int|float)' object is not iterable": ONE,
        "IndexError": TOO_FAR,
        "attribute '[FB]'": "`cost` is a dict: an action takes cost[action.kind].",
        "NameError|TypeError|during iteration": "",  # its own line says enough
        "(?i:deadlock)|RecursionError|RuntimeError": (
            "What can never start gets no end: return the ends of the others."
        ),
        "had not returned|KeyError: A": "All it needs has to end first. Stop if no device moved.",
    },
    wrong={
        "Waits are shared: it starts at the latest of these, not their sum.": "max([ => sum([",
        NOTHING: "max([free[device], *arrived]) => max(free[device], max(arrived))",
        ONE: "max([free[device], *arrived]) => max(free[device], *arrived)",
        TOO_FAR: "free[device] => free[action.stage_index]",
        SAME_DICT: ("cost): => cost, end={}):", "end, free, rows = {}, => free, rows ="),
        "Some actions are missing: go on as long as any device moves.": (
            "while moved: => for _ in range(4 * len(schedule)):"
        ),
        "What can never start gets no end, and so no infinite one either.": (
            "return end => return {a: end.get(a, float('inf')) for row in schedule for a in row}"
        ),
        "Some wait for ever: those that did run have their ends all the same.": (
            "return end => return {} if any(rows) else end"
        ),
        "A device does one thing at a time: two never overlap.": "([free[device], => ([0,",
        "A time need not be a whole number: an action starts at once, not at the next tick.": (
            "max([free[device], *arrived]) => -(-max([free[device], *arrived]) // 1)"
        ),
        "Times need not be whole numbers: leave the ends as they are.": [
            f"return end => return {{action: {whole}(end[action]) for action in end}}"
            for whole in ("int", "round")
        ],
        "A round in which any device moved, not only the last one, is followed by another.": [
            (again := "in enumerate(rows): => in enumerate(rows):\n            moved = False"),
            ("moved = False => pass", again.replace(" m", " if not moved: break\n            m")),
        ],
        "What needs(action, num_stages) lists has to end first.": ", *arrived => ",
        "An action takes cost[action.kind].": [
            "cost[action.kind] => 1",
            "cost[action.kind] => cost['FB'['BF'.index(action.kind)]]",
            "cost[action.kind] => dict(F=1, B=2)[action.kind]",
            "cost[action.kind] => cost['F'] * (1 + (action.kind == 'B'))",
        ],
        "All that needs lists has to end: a backward waits for its forward and for a gradient.": (
            "num_stages) => num_stages)[:1]"
        ),
        "A device does its list in order: what is first in it waits, and the rest with it.": (
            "while row and all(need in end for need in needs(row[0], num_stages)): => "
            "for action in filter(lambda a: all(n in end for n in needs(a, num_stages)), [*row]):",
            "row.pop(0) => row.pop(row.index(action))",
        ),
        "Each device, not each stage and not all together, has its own time at which it is free.": [
            "free[device] => free[0]",
            ("free[device] => free[action.stage_index]", "[0] * len(schedule) => [0] * num_stages"),
        ],
        "num_stages is one more than the largest stage_index.": "1 + max( => max(",
        "num_stages differs from schedule to schedule: one more than its largest stage_index.": [
            f"1 + max(action.stage_index for row in schedule for action in row) => {number}"
            for number in (2, 3, 4)
        ],
        "So few rounds over the devices are not enough: go on as long as a device moves.": [
            "while moved: => for _ in schedule:",
            *(f"while moved: => for _ in range({rounds}):" for rounds in range(1, 9)),
        ],
        "A device may have several stages: num_stages is not the number of devices.": (
            "num_stages) => len(schedule))"
        ),
        "That is when it starts; asked is when it ends.": (
            "return end => return {action: end[action] - cost[action.kind] for action in end}"
        ),
    },
    also_right=[
        "while moved: => for _ in range(99):",
        "cost[action.kind] => __import__('torch').tensor(cost[action.kind])",
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
        schedule.append(number_actions([(rank, kinds)]))
    return schedule


def latest_first(pairs):
    held, row = [], number_actions(pairs)
    return [held.append(a) or a if a.kind == "F" else held.pop()._replace(kind="B") for a in row]


PAIRS = "If the error is in its call: `number_actions` takes a list of pairs, [(r, kinds)]."

check_one_f_one_b = Exercise(
    my_one_f_one_b,
    read_again='"Who holds how much?"',
    cases=[(1, 2), (2, 3), (3, 5), (4, 2), (5, 7)],
    given="{} stage(s) and {} micro-batches",
    play=written_without(one_f_one_b_schedule),
    compared=first_row_that_differs,
    hint=why_wrong,
    correct="All {count} sizes agree, also fewer micro-batches than stages.",
    errors={"unpack": PAIRS},
    wrong={
        PAIRS: ["[(rank, kinds)] => (rank, kinds)", "[(rank, kinds)] => kinds"],
        "Each device is one forward ahead of the next one, not two.": (
            "num_stages - rank => 2 * (num_stages - rank) - 1"
        ),
        "That is GPipe: as fast, but device 0 holds every micro-batch.": gpipe_schedule,
        "Its warm-up is one short: device r does num_stages - r forwards before its first B.": [
            "num_stages - rank => max(1, num_stages - rank - 1)",
            "num_stages - rank => num_stages - rank - 1",
        ],
        "Its warm-up is too long: device r does num_stages - r forwards, so the last one 1.": (
            "num_stages - rank => num_stages - rank + 1"
        ),
        "The warm-up is the smaller of two numbers: min(), not max().": "min( => max(",
        "There are never more forwards ahead than there are micro-batches.": [
            "min(num_microbatches, => max(0,",
            ("min(num_microbatches, => max(0,", "- rank) => - rank - 1)", '"BF" => "FB"'),
        ],
        "Every device warms up like device 0: legal, but the later ones hold too much.": (
            "num_stages - rank => num_stages"
        ),
        "The last device does one F before its first B: a warm-up of 0 if turns begin with F.": (
            ("num_stages - rank => max(1, num_stages - rank - 1)", '"BF" => "FB"')
        ),
        "List r is for device r, which has stage r.": "return schedule => return schedule[::-1]",
        "Its warm-up grows with the device: the first one needs the longest.": [
            "num_stages - rank => rank + 1",
            "num_stages - rank => rank",
        ],
        "One micro-batch at a time: that is the naive schedule.": naive_schedule,
        "One list per stage: `return` after the loop.": "return schedule => return schedule[:1]",
        "num_stages comes before num_microbatches.": lambda m, p: my_one_f_one_b(p, m),
        OUT_OF_ORDER: "number_actions( => latest_first(",
    },
    also_right=[("* ahead => * (ahead - 1)", '"BF" => "FB"', "s - ahead) => s - ahead + 1)")],
)

# 3. The order inside an interleaved schedule


def my_interleaved(num_devices, num_microbatches, num_chunks):
    """Rounds of num_devices micro-batches: a round through one chunk, then through the next.

    Backwards go in the same rounds, from the last chunk to the first. So many forwards are ahead,
    then one forward and one backward follow in turn, and at the end the backwards that are left.
    """
    p, m = num_devices, num_microbatches
    rounds = [range(first, first + p) for first in range(0, m, p)]
    order = [(chunk, i) for each in rounds for chunk in range(num_chunks) for i in each]
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
    cases=[(1, 1, 2), (2, 4, 2), (2, 2, 2), (3, 3, 2), (3, 6, 2), (2, 4, 3), (2, 2, 1)],
    given="{} device(s), {} micro-batch(es), {} chunks a device",
    play=written_without(interleaved_schedule),
    compared=first_row_that_differs,
    hint=why_wrong,
    wrong={
        "A round is num_devices micro-batches: so many through one chunk, then through the next.": [
            ("range(0, m, p) => [0]", "first + p => m"),
            ("range(0, m, p) => range(m)", "first + p => first + 1"),
            (
                "range(0, m, p) => [0]",
                "first + p => m",
                "(num_chunks - 1) * p => m * (num_chunks - 1)",
            ),
        ],
        "Backwards begin with the device's last chunk: a gradient comes down the model.": (
            "num_chunks - 1 - chunk => chunk"
        ),
        "Device r has the stages r, r + num_devices, …: neighbours lie on neighbouring devices.": (
            "rank + p * => rank * num_chunks +"
        ),
        "Too many: the last device does (num_chunks - 1) * num_devices before its turns.": [
            "(p - 1 - rank) => (p - 1 - rank) + 1",
            "(p - 1 - rank) => (p - rank)",
        ],
        "That is GPipe in chunks: it holds all. Turns follow a warm-up, even if m = num_devices.": [
            "min(len(order), (num_chunks - 1) * p + 2 * (p - 1 - rank)) => len(order)",
            "ahead = => ahead = len(order) if m == p else",
            (
                "min(len(order), (num_chunks - 1) * p + 2 * (p - 1 - rank)) => len(order)",
                "range(0, m, p) => [0]",
                "first + p => m",
            ),
        ],
        "There are num_chunks * num_microbatches forwards: min() takes that number.": [
            "min(len(order), => max(0,",
            "min(len(order), => min(m,",
        ],
        "Each device does 2 forwards more than the next before its first B, not 1.": "2 * (p => (p",
        "2 forwards ahead of the next device, whatever num_chunks is.": "2 * (p => num_chunks * (p",
        "Its warm-up lacks 2 * (num_devices - 1 - r) forwards: each is 2 ahead of the next.": (
            " + 2 * (p - 1 - rank) => "
        ),
        "Its warm-up lacks (num_chunks - 1) * num_devices forwards.": "(num_chunks - 1) * p + => ",
        "Its warm-up is the longest on the first device, not on the last one.": (
            "(p - 1 - rank) => rank"
        ),
        "One F more stands before the first B: those ahead, then the first turn's own.": (
            "row += pair => row += pair[::-1]"
        ),
        "Where no forward is ahead, no backward is left: [-0:] is all of them.": (
            "backwards[len(order) - ahead :] => backwards[-ahead:]"
        ),
        "num_microbatches comes before num_chunks.": lambda p, v, m: my_interleaved(p, m, v),
        "One list per device, not per stage.": lambda p, m, v: one_f_one_b_schedule(p * v, m),
        "A device has num_chunks stages, not one.": lambda p, m, v: gpipe_schedule(p, m),
    },
)
