"""The checks accept right answers however they are written and explain wrong ones."""

import re

import pytest
import torch
from solutions import torch_pipelining as solutions

from mpcourse.checks import (
    check_columns,
    check_dimensions,
    check_partners,
    check_resume,
    verdict,
)
from mpcourse.checks.attempted_dimensions import BY_CROSSING, DIMENSIONS
from mpcourse.schedules.actions import makes, needs
from mpcourse.schedules.order import execution_order

CHECKS = (check_partners, check_columns, check_resume, check_dimensions)


def said(found) -> str:
    assert found.state == "not yet", found
    assert found.lines[-1].startswith("Read again: ")
    return "\n".join(found.lines)


def test_stubs_are_not_attempted():
    assert check_partners(lambda rank, data, pipeline: ...).state == "not attempted"
    assert check_columns(lambda schedule, num_stages: ...).state == "not attempted"
    assert check_dimensions(lambda lacking, links: ...).state == "not attempted"
    assert check_resume(lambda names, world_size: ...).state == "not attempted"
    for check in CHECKS:
        assert check(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_partners(solutions.my_partners).state == "correct"
    assert check_columns(solutions.my_columns).state == "correct"
    assert check_dimensions(solutions.my_dimensions).state == "correct"
    assert check_resume(solutions.my_resume_step).state == "correct"


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


def dimensions_one_by_one(lacking, links):
    """The fastest links that are left go to what crosses most often."""
    left, result = list(links), ["ddp"] * len(links)
    for what, name in {"one layer": "tensor", "weights": "fsdp", "all layers": "pipeline"}.items():
        if what in lacking:
            result[links.index(max(left))] = name
            left.remove(max(left))
    return result


def resume_by_trying(names, world_size):
    steps = {int(re.search(r"step(\d+)", name)[1]) for name in names}
    for step in sorted(steps, reverse=True):
        if all(f"rank{rank}-step{step:06d}.pt" in names for rank in range(world_size)):
            return step
    return None


def test_other_right_answers_are_correct():
    assert check_partners(partners_by_a_grid).state == "correct"
    assert check_columns(columns_by_order).state == "correct"
    assert check_dimensions(dimensions_one_by_one).state == "correct"
    assert check_resume(resume_by_trying).state == "correct"


def by_columns(rank, data, pipeline):
    stage = rank // data
    before = rank - data if stage else None
    after = rank + data if stage + 1 < pipeline else None
    return before, after, list(range(stage * data, stage * data + data))


def changed(change):
    """The right partners, put wrong."""

    def partners(rank, data, pipeline):
        return change(solutions.my_partners(rank, data, pipeline), rank, data, pipeline)

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
        (changed(lambda p, *_: (p[0], p[1], set(p[2]))), "give the third as a list: [0, 2]"),
        (
            changed(lambda p, rank, d, n: (p[0], p[1], range(rank % n, d * n, n))),
            "give the third as a list: [0, 2]",
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
    return lambda schedule, num_stages: change(solutions.my_columns(schedule, num_stages))


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
        (right_but(lambda rows: [[*row, ""] for row in rows]), "leave out empty last columns"),
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


TAKES = {"all layers": "pipeline", "weights": "fsdp", "one layer": "tensor"}


def by_position(lacking, links, backwards=False):
    """As if the last dimension always had the fastest links."""
    names = [TAKES[what] for what in lacking] + ["ddp"] * (len(links) - len(lacking))
    return sorted(names, key=BY_CROSSING.index, reverse=backwards)


def instead(what, other):
    """By the links, but another parallelism is taken against `what`."""

    def dimensions(lacking, links):
        names = [(TAKES | {what: other})[each] for each in lacking]
        names += ["ddp"] * (len(links) - len(names))
        order = sorted(range(len(links)), key=lambda dimension: links[dimension])
        placed = dict(zip(order, sorted(names, key=BY_CROSSING.index), strict=True))
        return [placed[dimension] for dimension in range(len(links))]

    return dimensions


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (by_position, "The fastest links are not always the last ones"),
        (lambda a, b: by_position(a, b, backwards=True), "The other way round"),
        (
            lambda a, b: solutions.my_dimensions(a, [-link for link in b]),
            "The other way round",
        ),
        (
            lambda a, b: (
                [TAKES[what] for what in a] if len(a) == 3 else solutions.my_dimensions(a, b)
            ),
            "That is the order of the question",
        ),
        (lambda a, b: [TAKES[what] for what in a], "DDP takes what is left"),
        (lambda a, b: solutions.my_dimensions(a, b) if a else [], "DDP takes what is left"),
        (lambda a, b: ["ddp"] * len(b), "every rank holds the whole model"),
        (instead("one layer", "fsdp"), "too large stays too large"),
        (instead("one layer", "pipeline"), "one layer stays whole"),
        (instead("weights", "tensor"), "the table has FSDP here"),
        (instead("weights", "pipeline"), "when all layers together do not fit"),
        (instead("all layers", "fsdp"), "a pipeline sends at its borders only"),
        (lambda a, b: set(solutions.my_dimensions(a, b)), "First the names from the table"),
        (lambda a, b: None, "function without return"),
        (5, "takes a function"),
    ],
)
def test_wrong_dimensions_are_explained(attempt, words):
    assert words in said(check_dimensions(attempt))


def test_no_case_puts_a_pipeline_beside_ddp():
    for lacking, links in DIMENSIONS:
        assert not {"pipeline", "ddp"} <= set(solutions.my_dimensions(lacking, links))


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
    return solutions.my_resume_step([n.replace(".part", ".pt") for n in names], world_size)


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
        (
            lambda n, w: solutions.my_resume_step(n, w) or 0,
            "return None, and the run begins anew",
        ),
        (
            lambda n, w: (solutions.my_resume_step(n, w) or 0) + 1 if n else None,
            "not one later",
        ),
        (lambda n, w: 5_000_000, "For each rank the set of its complete steps"),
        (lambda names, world_size: None, "None says that no step is common to all ranks; 2 is one"),
        (5, "takes a function"),
    ],
)
def test_wrong_steps_are_explained(attempt, words):
    assert words in said(check_resume(attempt))


def test_none_is_a_legal_step_so_nothing_is_said_about_a_missing_return():
    assert "without return" not in said(check_resume(lambda names, world_size: None))
