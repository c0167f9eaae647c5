"""The checks of page 09 accept right answers however they are written and explain wrong ones."""

import re

import pytest
import torch
from solutions import page_09

from mpcourse.actions import Action, makes, needs
from mpcourse.checks import check_actions, check_columns, check_partners, check_resume, verdict
from mpcourse.validate import execution_order

CHECKS = (check_partners, check_columns, check_actions, check_resume)


def said(found) -> str:
    assert found.state == "not yet", found
    assert found.lines[-1].startswith("Read again: ")
    return "\n".join(found.lines)


def test_stubs_are_not_attempted():
    assert check_partners(lambda rank, data, pipeline: ...).state == "not attempted"
    assert check_columns(lambda schedule, num_stages: ...).state == "not attempted"
    assert check_actions(lambda columns: ...).state == "not attempted"
    assert check_resume(lambda names, world_size: ...).state == "not attempted"
    for check in CHECKS:
        assert check(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_partners(page_09.my_partners).state == "correct"
    assert check_columns(page_09.my_columns).state == "correct"
    assert check_actions(page_09.my_actions).state == "correct"
    assert check_resume(page_09.my_resume_step).state == "correct"


def partners_by_a_grid(rank, data, pipeline):
    grid = torch.arange(data * pipeline).reshape(data, pipeline)
    row, stage = divmod(rank, pipeline)
    along = [None, *grid[row].tolist(), None]
    return along[stage], along[stage + 2], grid[:, stage].tolist()


def columns_by_order(schedule, num_stages):
    """In an order in which everything needed comes first, each as far left as it can."""
    columns, rows = {}, [[] for _ in schedule]
    for device, action in execution_order(schedule):
        first = max([0, *(columns[need] + 1 for need in needs(action, num_stages))])
        rows[device] += [""] * (first - len(rows[device])) + [str(action)]
        columns[makes(action)] = len(rows[device]) - 1
    longest = max(map(len, rows))
    return [row + [""] * (longest - len(row)) for row in rows]


def actions_by_letters(columns):
    schedule = []
    for row in columns:
        schedule.append([])
        for text in filter(None, row):
            kind = text.strip("0123456789")
            stage, index = map(int, text.split(kind))
            schedule[-1].append(Action(stage, kind, index))
    return schedule


def resume_by_trying(names, world_size):
    steps = {int(re.search(r"step(\d+)", name)[1]) for name in names}
    for step in sorted(steps, reverse=True):
        if all(f"rank{rank}-step{step:06d}.pt" in names for rank in range(world_size)):
            return step
    return None


def test_other_right_answers_are_correct():
    assert check_partners(partners_by_a_grid).state == "correct"
    assert check_columns(columns_by_order).state == "correct"
    assert check_actions(actions_by_letters).state == "correct"
    assert check_resume(resume_by_trying).state == "correct"


def by_columns(rank, data, pipeline):
    stage = rank // data
    before = rank - data if stage else None
    after = rank + data if stage + 1 < pipeline else None
    return before, after, list(range(stage * data, stage * data + data))


def changed(change):
    """The right partners, put wrong."""

    def partners(rank, data, pipeline):
        return change(page_09.my_partners(rank, data, pipeline), rank, data, pipeline)

    return partners


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (by_columns, "Ranks are numbered along a row"),
        (
            changed(
                lambda p, rank, d, n: (
                    rank - 1 if rank else None,
                    rank + 1 if rank + 1 < d * n else None,
                    p[2],
                )
            ),
            "stands at an end of its row",
        ),
        (
            changed(lambda p, rank, d, n: ((rank - 1) % n, (rank + 1) % n, p[2])),
            "A pipeline is no ring",
        ),
        (changed(lambda p, *_: (p[1], p[0], p[2])), "Before and after are exchanged"),
        (
            changed(lambda p, *_: (-1 if p[0] is None else p[0], p[1], p[2])),
            "the last nobody after it: None",
        ),
        (
            changed(lambda p, rank, *_: (p[0], p[1], [r for r in p[2] if r != rank])),
            "The group holds the rank itself too",
        ),
        (
            changed(
                lambda p, rank, d, n: (p[0], p[1], list(range(rank // n * n, rank // n * n + n)))
            ),
            "That is the pipeline",
        ),
        (
            changed(lambda p, rank, d, n: (p[0], p[1], list(range(d * n)))),
            "Only ranks with the same stage",
        ),
        (lambda rank, data, pipeline: None, "function without return"),
        (5, "takes a function"),
    ],
)
def test_wrong_partners_are_explained(attempt, words):
    assert words in said(check_partners(attempt))


def without_gaps(schedule, num_stages):
    return [[str(action) for action in row] for row in schedule]


def filled_at_the_end(schedule, num_stages):
    longest = max(map(len, schedule))
    return [row + [""] * (longest - len(row)) for row in without_gaps(schedule, num_stages)]


def at_once(schedule, num_stages):
    """What is done in a column counts in the same one for devices further down."""
    rows, position, done = [[] for _ in schedule], [0] * len(schedule), set()
    while any(place < len(row) for place, row in zip(position, schedule, strict=True)):
        for device, row in enumerate(schedule):
            action = row[position[device]] if position[device] < len(row) else None
            if action and all(need in done for need in needs(action, num_stages)):
                rows[device].append(str(action))
                done.add(makes(action))
                position[device] += 1
            else:
                rows[device].append("")
    return rows


def without_makes(schedule, num_stages):
    rows, columns = [[] for _ in schedule], {}
    for device, action in execution_order(schedule):
        first = max([0, *(columns[need] + 1 for need in needs(action, num_stages))])
        rows[device] += [""] * (first - len(rows[device])) + [str(action)]
        columns[action] = len(rows[device]) - 1
    longest = max(map(len, rows))
    return [row + [""] * (longest - len(row)) for row in rows]


def without_end(schedule, num_stages):
    while schedule:
        pass


def right_but(change):
    return lambda schedule, num_stages: change(page_09.my_columns(schedule, num_stages))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (without_gaps, "1F0 stands in the same column as 0F0"),
        (filled_at_the_end, "leave a cell empty"),
        (at_once, "in the same column as"),
        (without_makes, "makes(action) turns I into the B"),
        (right_but(lambda rows: [[t or None for t in r] for r in rows]), "None stands where"),
        (
            right_but(lambda rows: [["", *row] for row in rows]),
            "could stand in column 0; yours is 1",
        ),
        (
            right_but(lambda rows: [[t for text in row for t in (text, "")] for row in rows]),
            "Every action takes one column",
        ),
        (
            right_but(lambda rows: [(" ".join(row).rstrip()).split(" ") for row in rows]),
            "fill all up",
        ),
        (right_but(lambda rows: list(map(list, zip(*rows, strict=True)))), "one row per device, 2"),
        (right_but(lambda rows: ["".join(row) for row in rows]), "row 0 is no list"),
        (right_but(lambda rows: rows[::-1]), "device 0 does"),
        (lambda schedule, num_stages: schedule, "str(action)"),
        (lambda schedule, num_stages: None, "function without return"),
        (without_end, "had not returned"),
        (5, "takes a function"),
    ],
)
def test_wrong_columns_are_explained(attempt, words, monkeypatch):
    monkeypatch.setattr(verdict, "TIME_LIMIT_S", 0.5)
    assert words in said(check_columns(attempt))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (
            lambda rows: [[Action(int(t[0]), t[1], int(t[2])) for t in r if t] for r in rows],
            "A number can have two digits",
        ),
        (lambda rows: [[t for t in r if t] for r in rows], "Those are texts"),
        (
            lambda rows: [[(t[0], t[1], t[2:]) for t in r if t] for r in rows],
            "whole numbers: int(text)",
        ),
        (
            lambda rows: [[Action(int(t[0]), t[1], int(t[2:])) for t in r] for r in rows],
            "IndexError",
        ),
        (
            lambda rows: [[Action(int(t[0]), t[1], int(t[2:])) for t in r if t] for r in rows],
            "ValueError",
        ),
        (lambda rows: None, "function without return"),
        (5, "takes a function"),
    ],
)
def test_wrong_ways_back_are_explained(attempt, words):
    assert words in said(check_actions(attempt))


COMPLETE = re.compile(r"rank(\d+)-step(\d+)\.pt")


def rows_of(names):
    return [(int(m[1]), int(m[2])) for m in map(COMPLETE.fullmatch, names) if m]


def newest_of_all(names, world_size):
    return max((step for _, step in rows_of(names)), default=None)


def oldest_newest(names, world_size):
    rows = rows_of(names)
    newest = [max((s for r, s in rows if r == rank), default=None) for rank in range(world_size)]
    return None if None in newest else min(newest)


def with_parts(names, world_size):
    return page_09.my_resume_step([n.replace(".part", ".pt") for n in names], world_size)


def of_those_there(names, world_size):
    ranks = {rank for rank, _ in rows_of(names)}
    sets = [{s for r, s in rows_of(names) if r == rank} for rank in ranks]
    return max(set.intersection(*sets), default=None) if sets else None


def as_texts(names, world_size):
    sets = [
        {n.split("step")[1] for n in names if n.startswith(f"rank{r}-") and n.endswith(".pt")}
        for r in range(world_size)
    ]
    shared = set.intersection(*sets)
    return int(max(shared).split(".")[0]) if shared else None


def by_beginning(names, world_size):
    sets = [
        {
            int(n.split("step")[1][:-3])
            for n in names
            if n.startswith(f"rank{r}") and n[-3:] == ".pt"
        }
        for r in range(world_size)
    ]
    return max(set.intersection(*sets), default=None)


def without_default(names, world_size):
    sets = [{s for r, s in rows_of(names) if r == rank} for rank in range(world_size)]
    return max(set.intersection(*sets))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (newest_of_all, "Not every rank has a file of that step"),
        (oldest_newest, "The oldest of the newest is not common"),
        (with_parts, "A .part is a file that was never finished"),
        (of_those_there, "world_size says how many"),
        (as_texts, "Compare steps as numbers"),
        (by_beginning, "rank10 begins like rank1"),
        (without_default, "ValueError: max()"),
        (lambda n, w: page_09.my_resume_step(n, w) or 0, "return None, and the run begins anew"),
        (
            lambda n, w: (page_09.my_resume_step(n, w) or 0) + 1 if n else None,
            "For each rank the set of its complete steps",
        ),
        (lambda names, world_size: None, "function without return"),
        (5, "takes a function"),
    ],
)
def test_wrong_steps_are_explained(attempt, words):
    assert words in said(check_resume(attempt))
