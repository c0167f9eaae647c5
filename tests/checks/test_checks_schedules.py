"""The checks accept right answers however they are written and explain wrong ones."""

import numpy as np
import pytest
import torch
from schedule_cases import parse
from solutions import schedules as solutions

from mpcourse.checks import (
    check_board,
    check_gpipe,
    check_one_f_one_b,
    check_split_backward,
    check_stuck,
    verdict,
)
from mpcourse.schedules.actions import Action, ScheduleError, makes, needs
from mpcourse.schedules.builder import Builder
from mpcourse.schedules.order import execution_order
from mpcourse.schedules.standard import gpipe_schedule, naive_schedule, one_f_one_b_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule


def said(found) -> str:
    assert found.state == "not yet", found
    assert found.lines[-1].startswith("Read again: ")
    return "\n".join(found.lines)


def test_stubs_are_not_attempted():
    assert check_board(...).state == "not attempted"
    assert check_gpipe(lambda p, m: ...).state == "not attempted"
    assert check_one_f_one_b(lambda p, m: ...).state == "not attempted"
    assert check_stuck(lambda schedule, p: ...).state == "not attempted"
    assert check_split_backward(lambda p, m: ...).state == "not attempted"
    for check in (check_gpipe, check_one_f_one_b, check_stuck, check_split_backward):
        assert check(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_board(solutions.my_schedule).state == "correct"
    assert check_gpipe(solutions.my_gpipe).state == "correct"
    assert check_one_f_one_b(solutions.my_one_f_one_b).state == "correct"
    assert check_stuck(solutions.my_stuck).state == "correct"
    assert check_split_backward(solutions.my_split_backward).state == "correct"


# The order that takes 23: not the best, but better than the cut-down 1F1B
TAKES_23 = """
0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3
1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3
2F0 2B0 2F1 2B1 2F2 2F3 2B2 2B3
"""


def gpipe_by_loops(p, m):
    schedule = []
    for stage in range(p):
        row = []
        for kind in ("F", "B"):
            for index in range(m):
                row.append(Action(stage, kind, index))
        schedule.append(row)
    return schedule


def gpipe_in_plain_tuples(p, m):
    return tuple(tuple(map(tuple, row)) for row in gpipe_by_loops(p, m))


def gpipe_in_numpy(p, m):
    rows = range(p), "FB", np.arange(m)
    return [[Action(r, kind, i) for kind in rows[1] for i in rows[2]] for r in rows[0]]


def one_f_one_b_by_pairs(p, m):
    """Warm-up one shorter, then forward and backward in pairs: the same order."""
    schedule = []
    for rank in range(p):
        ahead = min(p - rank - 1, m)
        row = [Action(rank, "F", index) for index in range(ahead)]
        for index in range(m):
            if ahead + index < m:
                row.append(Action(rank, "F", ahead + index))
            row.append(Action(rank, "B", index))
        schedule.append(row)
    return schedule


def stuck_by_the_course(schedule, num_stages):
    done, finished = set(), [0] * len(schedule)
    try:
        for device, action in execution_order(schedule):
            done.add(makes(action))
            finished[device] += 1
    except ScheduleError:
        pass
    rows = zip(schedule, finished, strict=True)
    return [row[count] if count < len(row) else None for row, count in rows]


def test_other_right_answers_are_correct():
    assert "the best is 21" in repr(check_board(parse(TAKES_23)))
    assert "It takes 21" in repr(check_board([tuple(row) for row in solutions.my_schedule]))
    assert check_board(parse(TAKES_23)[::-1]).state == "correct"  # devices in another order
    plain = [tuple((s, kind, n) for s, kind, n in row) for row in solutions.my_schedule]
    assert "It takes 21" in repr(check_board(plain))
    assert check_gpipe(gpipe_by_loops).state == "correct"
    assert check_gpipe(gpipe_in_plain_tuples).state == "correct"
    assert check_gpipe(gpipe_in_numpy).state == "correct"
    assert check_one_f_one_b(one_f_one_b_by_pairs).state == "correct"
    assert check_stuck(stuck_by_the_course).state == "correct"
    assert check_stuck(lambda s, p: tuple(stuck_by_the_course(s, p))).state == "correct"
    assert check_stuck(lambda s, p: [a and tuple(a) for a in stuck_by_the_course(s, p)]) == (
        check_stuck(stuck_by_the_course)
    )
    h1 = check_split_backward(lambda p, m: zero_bubble_schedule(p, m, "h1"))
    assert h1.state == "correct"
    assert "0.111" in repr(h1)


def capped_one_f_one_b():
    """1F1B for 3 stages whose first device runs only two ahead."""
    first = "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"
    return [*parse(first), *one_f_one_b_schedule(3, 4)[1:]]


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (capped_one_f_one_b(), "it takes 24; less than 24 is asked for"),
        (capped_one_f_one_b(), "Device 1 decides"),
        (naive_schedule(3, 4), "Nothing overlaps yet"),
        (one_f_one_b_schedule(3, 4), "device 0: 0F2 makes it hold 3 activations"),
        (gpipe_schedule(3, 4), "The board refuses such a move"),
        (Builder(3, 4, 2).add("0F0 1F0").schedule, "The board is not complete yet"),
        (Builder(3, 4, 2), "its schedule is board.schedule"),
        (7, "one list per device; got 7"),
        ("0F0", "one list per device; got '0F0'"),
        ([["0F0"], [], []], "Action(stage_index, kind, index); got '0F0'"),
        (one_f_one_b_schedule(2, 4), "2F0 is missing: no device has stage 2"),
        (zero_bubble_schedule(3, 4, "h1"), "Whole backwards are asked for"),
        ([[Action("a", "F", 0)]], "a number, a letter and a number; got ('a', 'F', 0)"),
        ([[Action(0, 1, 0)]], "a number, a letter and a number; got (0, 1, 0)"),
    ],
)
def test_wrong_boards_are_explained(attempt, words):
    assert words in said(check_board(attempt))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (naive_schedule, "that is the naive schedule"),
        (
            lambda p, m: [
                [Action(r, "F", i) for i in range(m)]
                + [Action(r, "B", m - 1 - i) for i in range(m)]
                for r in range(p)
            ],
            "last in, first out",
        ),
        (
            lambda p, m: [
                [Action(r, kind, i) for r in range(p) for kind in "FB"] for i in range(m)
            ],
            "expected 1 lists, got 2",
        ),
        (lambda p, m: gpipe_by_loops(p, m)[0], "in it stands"),
        (lambda p, m: [[None, *row] for row in gpipe_by_loops(p, m)], "a device waits by itself"),
        (lambda p, m: gpipe_by_loops(p, m + 1), "which is not in 0 to 1"),
        (lambda p, m: gpipe_by_loops(m, p), "expected 1 lists, got 2"),
        (lambda p, m: [[str(a) for a in row] for row in gpipe_by_loops(p, m)], "got '0F0'"),
        (lambda p, m: None, "got None"),
        (lambda p, m: torch.zeros(p, m), "one list per device; got tensor"),
        (lambda p, m: [[(r, "F")] for r in range(p)], "got (0, 'F')"),
        (lambda p, m: tuple(map(tuple, naive_schedule(p, m))), "that is the naive schedule"),
        (lambda p: [], "TypeError"),
        (5, "takes a function"),
    ],
)
def test_wrong_gpipes_are_explained(attempt, words):
    assert words in said(check_gpipe(attempt))


def warmed_up(ahead_of):
    def schedule(p, m):
        rows = []
        for rank in range(p):
            row, done = [], {"F": 0, "B": 0}
            ahead = max(0, min(m, ahead_of(p, rank)))
            for kind in "F" * ahead + "BF" * (m - ahead) + "B" * ahead:
                row.append(Action(rank, kind, done[kind]))
                done[kind] += 1
            rows.append(row)
        return rows

    return schedule


def last_stage_turned(p, m):
    """The last stage collects two forwards and does their backwards in the wrong order."""
    rows = one_f_one_b_schedule(p, m)
    if m >= 2:
        kinds = [("F", 0), ("F", 1), ("B", 1), ("B", 0)]
        rows[-1] = [Action(p - 1, kind, i) for kind, i in kinds] + rows[-1][4:]
    return rows


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (gpipe_schedule, "That is GPipe"),
        (warmed_up(lambda p, r: max(1, p - r - 1)), "one short"),
        (warmed_up(lambda p, r: p - r - 1), "comes before 0F0; a backward comes after"),
        (warmed_up(lambda p, r: p - r + 1), "one too long"),
        (warmed_up(lambda p, r: p), "Every device warms up like device 0"),
        (warmed_up(lambda p, r: r + 1), "grows with the device"),
        (last_stage_turned, "It is legal, but another order: time"),
        (
            lambda p, m: [
                [Action(r, "F", i) for i in range(p - r)] + row[min(m, p - r) :]
                for r, row in enumerate(one_f_one_b_schedule(p, m))
            ],
            "which is not in 0 to 1",
        ),
    ],
)
def test_wrong_one_f_one_bs_are_explained(attempt, words):
    assert words in said(check_one_f_one_b(attempt))


def one_round(schedule, num_stages):
    done, heads = set(), []
    for row in schedule:
        head = None
        for action in row:
            if any(need not in done for need in needs(action, num_stages)):
                head = action
                break
            done.add(makes(action))
        heads.append(head)
    return heads


def without_makes(schedule, num_stages):
    done, position = set(), [0] * len(schedule)
    for _ in range(sum(map(len, schedule))):
        for device, row in enumerate(schedule):
            while position[device] < len(row):
                action = row[position[device]]
                if any(need not in done for need in needs(action, num_stages)):
                    break
                done.add(action)
                position[device] += 1
    rows = zip(schedule, position, strict=True)
    return [row[place] if place < len(row) else None for row, place in rows]


def what_is_missing(schedule, num_stages):
    stuck = solutions.my_stuck(schedule, num_stages)
    done = set()
    for row, head in zip(schedule, stuck, strict=True):
        done.update(map(makes, row if head is None else row[: row.index(head)]))
    missing = lambda a: next(n for n in needs(a, num_stages) if n not in done)  # noqa: E731
    return [None if head is None else missing(head) for head in stuck]


def without_end(schedule, num_stages):
    while any(solutions.my_stuck(schedule, num_stages)):
        pass
    return solutions.my_stuck(schedule, num_stages)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (one_round, "One round is not enough"),
        (without_makes, "remember makes(action) as done"),
        (without_end, "a whole round over the devices"),
        (lambda s, p: [None] * len(s), "Nobody finishes here"),
        (lambda s, p: [a for a in solutions.my_stuck(s, p) if a], "One entry per device"),
        (lambda s, p: [a and str(a) for a in solutions.my_stuck(s, p)], "not its text"),
        (lambda s, p: None, "function without return"),
        (lambda s, p: [row[0] for row in s], "A device goes on while"),
        (what_is_missing, "Those are what the devices wait for"),
        (lambda s, p: s[99], "IndexError"),
        (lambda s, p: torch.zeros(len(s)), "A list is asked for"),
        (lambda s, p: [np.zeros(2) for _ in s], "Each entry is an Action or None"),
        (lambda s, p: [torch.zeros(2) for _ in s], "Each entry is an Action or None"),
        (5, "takes a function"),
    ],
)
def test_wrong_answers_about_waiting_are_explained(attempt, words, monkeypatch):
    monkeypatch.setattr(verdict, "TIME_LIMIT_S", 0.5)
    assert words in said(check_stuck(attempt))


def halves_side_by_side(maker, halves="IW"):
    """A schedule with both halves in the place of each backward."""

    def split(p, m):
        rows = maker(p, m)
        kinds = {"F": "F", "B": halves}
        return [[a._replace(kind=kind) for a in row for kind in kinds[a.kind]] for row in rows]

    return split


def split_with(order):
    """1F1B whose backwards are split; `order` rearranges a device's list."""
    return lambda p, m: [order(row) for row in solutions.my_split_backward(p, m)]


def weights_last(row):
    return [a for a in row if a.kind != "W"] + [a for a in row if a.kind == "W"]


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


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (one_f_one_b_schedule, "Its backwards are whole"),
        (weights_when_memory_is_full, "before its last I"),
        (lambda p, m: zero_bubble_schedule(p, m, "h2"), "makes it hold"),
        (split_with(weights_last), "do not put it off so long"),
        (split_with(lambda row: [a for a in row if a.kind != "W"]), "0W0 is missing"),
        (split_with(lambda row: [*row[:1], *row[:0:-1]]), "comes before"),
        (halves_side_by_side(one_f_one_b_schedule, "WI"), "W comes after I"),
        (halves_side_by_side(naive_schedule), "no W may hold it up"),
        (halves_side_by_side(one_f_one_b_schedule), "A W beside its I fills no hole"),
        (lambda p, m: [], "a schedule is a list with one list per device"),
        (5, "takes a function"),
    ],
)
def test_wrong_split_backwards_are_explained(attempt, words):
    assert words in said(check_split_backward(attempt))
