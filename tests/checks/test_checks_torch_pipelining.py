"""The checks accept right answers however they are written and explain wrong ones."""

import numpy as np
import pytest
import torch
from solutions import torch_pipelining as solutions

from mpcourse.checks import (
    check_columns,
    check_padded,
    check_partners,
    verdict,
)
from mpcourse.schedules.actions import makes, needs
from mpcourse.schedules.order import execution_order

CHECKS = (check_padded, check_partners, check_columns)


def said(found) -> str:
    assert found.state == "not yet", found
    assert found.lines[-1].startswith("Read again: ")
    return "\n".join(found.lines)


def test_stubs_are_not_attempted():
    assert check_partners(lambda rank, data, pipeline: ...).state == "not attempted"
    assert check_columns(lambda schedule, num_stages: ...).state == "not attempted"
    assert check_padded(lambda inputs, targets, microbatches: ...).state == "not attempted"
    for check in CHECKS:
        assert check(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_partners(solutions.my_partners).state == "correct"
    assert check_columns(solutions.my_columns).state == "correct"
    assert check_padded(solutions.my_padded).state == "correct"


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


def padded_row_by_row(inputs, targets, microbatches):
    """One row at a time, and any row will do: it does not count."""
    targets = targets.tolist()
    while len(inputs) % microbatches:
        inputs = torch.cat([inputs, inputs[-1:]])
        targets.append(-100)
    return [inputs, torch.tensor(targets)]


def partners_as_array(rank, data, pipeline):
    before, after, group = solutions.my_partners(rank, data, pipeline)
    return before, after, np.array(group)


def test_other_right_answers_are_correct():
    assert check_partners(partners_by_a_grid).state == "correct"
    assert check_columns(columns_by_order).state == "correct"
    assert check_partners(partners_as_array).state == "correct"
    assert check_padded(padded_row_by_row).state == "correct"


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
            changed(lambda p, rank, d, n: ((rank - 1) % (d * n), (rank + 1) % (d * n), p[2])),
            "A mesh is no ring",
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


def filled(number_of_rows=lambda rows, parts: -rows % parts, fill=-100):
    def padded(inputs, targets, microbatches):
        more = number_of_rows(len(inputs), microbatches)
        rows = torch.cat([inputs, inputs.new_zeros(more, *inputs.shape[1:])])
        return rows, torch.cat([targets, targets.new_full((more,), fill)])

    return padded


def in_floats(inputs, targets, microbatches):
    inputs, targets = solutions.my_padded(inputs, targets, microbatches)
    return inputs, targets.float()


def in_front(inputs, targets, microbatches):
    more = -len(inputs) % microbatches
    inputs, targets = solutions.my_padded(inputs, targets, microbatches)
    return inputs.roll(more, 0), targets.roll(more, 0)


def shortened(inputs, targets, microbatches):
    rows = len(inputs) // microbatches * microbatches
    return inputs[:rows], targets[:rows]


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (filled(fill=0), "A target from 0 on is a class"),
        (filled(fill=-1), "ignore_index is -100"),
        (filled(lambda rows, parts: parts - rows % parts), "Nothing is missing here"),
        (filled(lambda rows, parts: rows % parts), "over, not missing"),
        (lambda inputs, targets, parts: (inputs, targets), "Nothing was added"),
        (shortened, "Rows were left out"),
        (in_floats, "they stay whole numbers"),
        (in_front, "behind those of the batch"),
        (lambda i, t, n: (solutions.my_padded(i, t, n)[0], t), "have to be equally long"),
        (lambda i, t, n: solutions.my_padded(i, t, n)[::-1], "First the inputs"),
        (lambda i, t, n: solutions.my_padded(i, t, n)[0], "Two things are asked for"),
        (filled(lambda rows, parts: 1), "-rows % microbatches"),
        (lambda i, t, n: (i, t.float()), "-rows % microbatches"),
        (lambda i, t, n: (i.numpy(), t), "-rows % microbatches"),
        (lambda i, t, n: (i.sum(), t.sum()), "-rows % microbatches"),
        (lambda inputs, targets, microbatches: None, "function without return"),
        (5, "takes a function"),
    ],
)
def test_wrong_filling_is_explained(attempt, words):
    assert words in said(check_padded(attempt))


@pytest.mark.parametrize("group", [np.arange(8), torch.arange(8)])
def test_a_wrong_group_in_an_array_is_explained(group):
    attempt = changed(lambda p, rank, d, n: (p[0], p[1], group[: d * n]))
    assert "Only ranks with the same stage" in said(check_partners(attempt))
