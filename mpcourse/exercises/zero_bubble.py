"""Exercises of page `zero_bubble`: split backwards under a cap."""

from itertools import pairwise

from mpcourse.exercises.exercise import Exercise, NotYet
from mpcourse.exercises.schedules import as_actions
from mpcourse.schedules.actions import ScheduleError
from mpcourse.schedules.builder import UNITS
from mpcourse.schedules.simulation import simulate
from mpcourse.schedules.standard import naive_schedule, one_f_one_b_schedule
from mpcourse.schedules.validate import validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule

# 1. Split backwards: idle at most 0.15 with 4 stages and 8 micro-batches, under a cap

MOST_IDLE = 0.15
GIVEN_BACK = "What is held is given back by W: do not put it off so long."
STILL_WHOLE = "Its backwards are whole. Which half of them does the stage before wait for?"
BESIDE = "A W beside its I fills no hole. Which devices hold less than the cap allows?"
FILL_NOTHING = "Some W wait, but fill no hole. Where does a device wait before its last I?"
LATE_I = "An I that comes late makes the stages before wait: no W may hold it up."


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


def idle_share(attempt, p, m):
    schedule = as_actions(attempt(p, m))
    try:
        validate_schedule(schedule, p, m, max_activations=p)
    except ScheduleError as error:
        raise NotYet(str(error), GIVEN_BACK * ("makes it hold" in str(error))) from None
    idle = simulate(schedule, UNITS).bubble_fraction
    if idle <= MOST_IDLE or (p, m) != (4, 8):
        return idle
    after_i = [(a, b) for row in schedule for a, b in pairwise(row) if a.kind == "I"]
    if not after_i:
        why = STILL_WHOLE
    elif idle > 0.2 + 1e-9:
        why = LATE_I
    else:
        why = BESIDE if all(b == a._replace(kind="W") for a, b in after_i) else FILL_NOTHING
    raise NotYet(f"expected an idle share of at most {MOST_IDLE:.3f}", f"got {idle:.3f}", why)


def split_with(order=list, maker=my_split_backward, halves="IW"):
    """Each backward as two halves side by side, then each device's list in another order."""

    def attempt(p, m):
        kinds = {"F": "F", "B": halves, "I": "I", "W": "W"}
        rows = [[a._replace(kind=k) for a in row for k in kinds[a.kind]] for row in maker(p, m)]
        return [order(row) for row in rows]

    return attempt


def weights_when_memory_is_full(p, m):
    """No W before the cap asks for one: those that are left stand behind the last I."""
    rows = []
    for row in one_f_one_b_schedule(p, m):
        split, waiting, held = [], [], 0
        for action in row:
            if action.kind == "F" and held == p:
                split.append(waiting.pop(0))
                held -= 1
            held += action.kind == "F"
            split.append(action if action.kind == "F" else action._replace(kind="I"))
            waiting += [action._replace(kind="W")] if action.kind == "B" else []
        rows.append(split + waiting)
    return rows


check_split_backward = Exercise(
    my_split_backward,
    read_again='"What fills the holes?"',
    cases=[(2, 3), (3, 2), (4, 8)],
    given="{} stages and {} micro-batches",
    play=idle_share,
    same=None,
    correct="With 4 stages and 8 micro-batches {outcome:.3f} is idle, and nobody holds 5.",
    wrong={
        STILL_WHOLE: one_f_one_b_schedule,
        BESIDE: split_with(maker=one_f_one_b_schedule),
        FILL_NOTHING: weights_when_memory_is_full,
        LATE_I: split_with(maker=naive_schedule),
        GIVEN_BACK: [
            split_with(lambda row: sorted(row, key=lambda action: action.kind == "W")),
            lambda p, m: zero_bubble_schedule(p, m, "h2"),
        ],
        "0W0 is missing": split_with(lambda row: [a for a in row if a.kind != "W"]),
        "comes before": split_with(lambda row: [*row[:1], *row[:0:-1]]),
        "W comes after I": split_with(maker=one_f_one_b_schedule, halves="WI"),
        "a schedule is a list with one list per device": lambda p, m: [],
    },
    also_right=[lambda p, m: zero_bubble_schedule(p, m, "h1")],
)
