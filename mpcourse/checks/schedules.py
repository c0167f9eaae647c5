"""Checks: a schedule built by hand, GPipe and 1F1B, a deadlock, split backwards."""

from collections.abc import Callable
from typing import Any

from mpcourse.checks.attempted_schedules import (
    Maker,
    as_actions,
    judge_maker,
    shape_problem,
    text_of,
    transposed,
    warmed_up,
    why_holes_stay,
)
from mpcourse.checks.verdict import (
    Verdict,
    correct,
    no_function,
    not_attempted,
    not_yet,
    same,
    short,
    try_out,
)
from mpcourse.schedules.actions import Action, Schedule, ScheduleError, makes, needs
from mpcourse.schedules.builder import UNITS
from mpcourse.schedules.simulation import simulate
from mpcourse.schedules.standard import gpipe_schedule, naive_schedule, one_f_one_b_schedule
from mpcourse.schedules.validate import validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule

MOST_IDLE = 0.15
BOARD, CAP, TO_BEAT, BEST = (3, 4), 2, 24, 21  # stages and micro-batches; times of whole backwards
BY_HAND = '"Can you beat 24?"'
AS_DATA = '"What is a schedule?"'
WARM_UP = '"Who holds how much?"'
WAITING = '"Who waits for whom?"'
HOLES = '"What fills the holes?"'


def check_board(attempt: Schedule) -> Verdict:
    """Check `my_schedule`: 3 stages, 4 micro-batches, at most 2 held, in less than 24.

    Args:
        attempt: A list of actions per device.
    """
    if attempt is ...:
        return not_attempted()
    if hasattr(attempt, "schedule"):
        return not_yet(["This is the board; its schedule is board.schedule."], BY_HAND)
    problem = shape_problem(attempt)
    if problem:
        return not_yet([problem], BY_HAND)
    attempt = as_actions(attempt)
    if any(action.kind in "IW" for row in attempt for action in row):
        return not_yet(["Whole backwards are asked for here: B, no I and no W."], BY_HAND)
    try:
        validate_schedule(attempt, *BOARD, max_activations=CAP)
    except ScheduleError as error:
        missing = "is missing" in str(error)
        hint = "The board is not complete yet." if missing else "The board refuses such a move."
        return not_yet([str(error), hint], BY_HAND)
    time = simulate(attempt, UNITS).makespan
    if time >= TO_BEAT:
        lines = [f"Legal, and it takes {time:g}; less than {TO_BEAT} is asked for."]
        if time == simulate(naive_schedule(*BOARD), UNITS).makespan:
            lines.append("Nothing overlaps yet: the cap allows two micro-batches under way.")
        else:
            lines.append("Device 1 decides: what keeps both of its neighbours at work?")
        return not_yet(lines, BY_HAND)
    best = "the best with whole backwards" if time <= BEST else f"the best is {BEST}"
    return correct(f"It takes {time:g}, and nobody holds more than {CAP}; {best}.")


def check_gpipe(attempt: Maker) -> Verdict:
    """Check `my_gpipe(num_stages, num_microbatches)`.

    Args:
        attempt: Returns one list of actions per device.
    """

    def backwards_turned(p: int, m: int) -> Schedule:
        forwards = [[Action(rank, "F", index) for index in range(m)] for rank in range(p)]
        return [row + [a._replace(kind="B") for a in reversed(row)] for row in forwards]

    known = [
        (naive_schedule, "One micro-batch at a time: that is the naive schedule."),
        (backwards_turned, "Legal, but last in, first out; backwards go first in, first out."),
        (transposed(gpipe_schedule), "One list per device, not one per micro-batch."),
    ]
    return judge_maker(attempt, gpipe_schedule, known, AS_DATA)


def check_one_f_one_b(attempt: Maker) -> Verdict:
    """Check `my_one_f_one_b(num_stages, num_microbatches)`.

    Args:
        attempt: Returns one list of actions per device.
    """
    known = [
        (gpipe_schedule, "That is GPipe: as fast, but device 0 holds every micro-batch."),
        (
            warmed_up(lambda p, rank: max(1, p - rank - 1)),
            "Its warm-up is one short: device r does num_stages - r forwards before its first B.",
        ),
        (
            warmed_up(lambda p, rank: p - rank + 1),
            "Its warm-up is one too long: it runs, but every device holds one more.",
        ),
        (
            warmed_up(lambda p, rank: p),
            "Every device warms up like device 0: legal, but the later ones hold too much.",
        ),
        (
            warmed_up(lambda p, rank: rank + 1),
            "Its warm-up grows with the device: the first one needs the longest.",
        ),
    ]
    return judge_maker(attempt, one_f_one_b_schedule, known, WARM_UP)


def check_stuck(attempt: Callable[[Schedule, int], list[Action | None]]) -> Verdict:
    """Check `my_stuck(schedule, num_stages)`: where does each device stop?

    Args:
        attempt: Returns for each device the action that it waits with for ever, or None.
    """
    if not callable(attempt):
        return no_function(attempt, WAITING)
    for words, schedule, num_stages in _stuck_cases():
        got, problem = try_out(attempt, [list(row) for row in schedule], num_stages)
        if got is ...:
            return not_attempted()
        expected = _stuck(schedule, num_stages, rounds=sum(map(len, schedule)))
        got = list(got) if isinstance(got, list | tuple) else got
        if problem is None and isinstance(got, list) and same(got, expected):
            continue
        lines = [
            f"Given {words}:",
            *(f"  device {d}: {text_of(r)}" for d, r in enumerate(schedule)),
        ]
        if problem:
            stops = "Stop when a whole round over the devices got none of them any further."
            return not_yet([*lines, problem, stops], WAITING)
        lines += [f"expected {_listed(expected)}", f"got {_listed(got)}"]
        return not_yet([*lines, _why_not_stuck_there(got, expected, schedule, num_stages)], WAITING)
    return correct("All cases agree: those that end, and those that wait for ever.")


def _stuck_cases() -> list[tuple[str, Schedule, int]]:
    warm_up = warmed_up(lambda p, rank: rank + 1)
    no_forward = gpipe_schedule(2, 2)
    no_forward[0] = [Action(0, "F", 0)]
    return [
        ("a schedule that runs", gpipe_schedule(2, 1), 2),
        ("two devices that wait for each other", warm_up(2, 2), 2),
        ("a longer one that runs", one_f_one_b_schedule(4, 5), 4),
        ("a forward that no device does", no_forward, 2),
        ("split backwards", zero_bubble_schedule(2, 4, "h2"), 2),
        ("three devices", warm_up(3, 4), 3),
    ]


def _stuck(schedule: Schedule, num_stages: int, rounds: int) -> list[Action | None]:
    """Where each device stands after so many rounds over all devices."""
    done: set[Action] = set()
    position = [0] * len(schedule)
    for _ in range(rounds):
        for device, row in enumerate(schedule):
            for action in row[position[device] :]:
                if not done.issuperset(needs(action, num_stages)):
                    break
                done.add(makes(action))
                position[device] += 1
    rows = zip(schedule, position, strict=True)
    return [row[place] if place < len(row) else None for row, place in rows]


def _why_not_stuck_there(got: Any, expected: list, schedule: Schedule, num_stages: int) -> str:
    if got is None:
        return "None is what a function without return gives back."
    if not isinstance(got, list):
        return "A list is asked for, with one entry per device."
    if not all(entry is None or isinstance(entry, str | tuple) for entry in got):
        return "Each entry is an Action or None."
    if got == _stuck(schedule, num_stages, rounds=1):
        return "One round is not enough: what was missing may come from a later device."
    if got == [action for action in expected if action is not None]:
        return "One entry per device: None for those that come to their end."
    if got in (list(map(str, expected)), [a and str(a) for a in expected]):
        return "The Action itself is asked for, not its text."
    if len(got) == len(schedule) and all(entry is None for entry in got):
        return "Nobody finishes here: a device that never finishes waits with its next action."
    awaited = [a and _missing(a, schedule, expected, num_stages) for a in expected]
    if got == awaited:
        return "Those are what the devices wait for; asked is the action that each waits with."
    if any(action.kind == "I" for row in schedule for action in row):
        return "needs says B for I as well: remember makes(action) as done, not the action."
    return "A device goes on while everything in needs(action, num_stages) is done."


def _missing(action: Action, schedule: Schedule, stuck: list, num_stages: int) -> Action:
    """What `action` waits for, if the devices stand where `stuck` says."""
    done = set()
    for row, end in zip(schedule, stuck, strict=True):
        done |= {makes(each) for each in (row if end is None else row[: row.index(end)])}
    return next(need for need in needs(action, num_stages) if need not in done)


def _listed(got: Any) -> str:
    if not isinstance(got, list | tuple):
        return short(got)
    return f"[{', '.join(str(a) if isinstance(a, Action) else short(a) for a in got)}]"


def check_split_backward(attempt: Maker) -> Verdict:
    """Check `my_split_backward(num_stages, num_microbatches)`: idle at most 0.15, under a cap.

    Args:
        attempt: Returns a schedule; with 4 stages and 8 micro-batches it idles at most 0.15, and
            no device ever holds more than num_stages.
    """
    if not callable(attempt):
        return no_function(attempt, HOLES)
    for p, m in [(2, 3), (3, 2), (4, 8)]:
        got, problem = try_out(attempt, p, m)
        if got is ...:
            return not_attempted()
        lines = [f"Given {p} stages and {m} micro-batches:"]
        problem = problem or shape_problem(got)
        if problem:
            return not_yet([*lines, problem], HOLES)
        got = as_actions(got)
        try:
            validate_schedule(got, p, m, max_activations=p)
        except ScheduleError as error:
            hint = "What is held is given back by W: do not put it off so long."
            return not_yet([*lines, str(error), hint * ("makes it hold" in str(error))], HOLES)
    idle = simulate(got, UNITS).bubble_fraction
    if idle <= MOST_IDLE:
        return correct(f"With 4 stages and 8 micro-batches {idle:.3f} is idle, and nobody holds 5.")
    lines += [f"expected an idle share of at most {MOST_IDLE:.3f}", f"got {idle:.3f}"]
    if not any(action.kind == "I" for row in got for action in row):
        lines.append("Its backwards are whole. Which half of them does the stage before wait for?")
    elif idle <= 0.2 + 1e-9:
        lines.append(why_holes_stay(got))
    else:
        lines.append("An I that comes late makes the stages before wait: no W may hold it up.")
    return not_yet(lines, HOLES)
