"""Checks: a ragged batch filled up, an order in columns of time, ranks on a mesh.

Page `torch_pipelining`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpcourse.checks.attempted_columns import columns_problem
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    same,
    try_out,
)
from mpcourse.schedules.actions import Schedule
from mpcourse.schedules.named import make_schedule

WHERE_MESH = '"Two pipelines beside each other: who talks to whom?"'
WHERE_COLUMNS = '"Can one engine run the other\'s order?" and the text of the exercise'
ALONG_A_ROW = "Ranks are numbered along a row: 0, 1, and so on are one pipeline."
WHERE_PADDED = '"What does it do with ten rows in four parts?"'
NOT_COUNTED = -100  # torch's ignore_index

Partners = tuple[int | None, int | None, list[int]]


def check_partners(attempt: Callable[[int, int, int], Partners]) -> Verdict:
    """Check `my_partners(rank, data, pipeline)`.

    Args:
        attempt: Returns (the rank before, the rank after, all ranks of the same stage).
    """
    places = (
        (0, 2, 2),
        (3, 2, 2),
        (5, 2, 4),
        (4, 2, 4),
        (3, 2, 4),
        (2, 4, 2),
        (0, 8, 1),
        (6, 1, 8),
    )
    return check_cases(attempt, [_partners_case(*place) for place in places], where=WHERE_MESH)


def _partners(rank: int, data: int, pipeline: int) -> Partners:
    stage = rank % pipeline
    before = rank - 1 if stage > 0 else None
    after = rank + 1 if stage < pipeline - 1 else None
    return before, after, list(range(stage, data * pipeline, pipeline))


def _by_columns(rank: int, data: int, pipeline: int) -> Partners:
    """As if the ranks were numbered along the columns of the mesh."""
    stage = rank // data
    before = rank - data if stage > 0 else None
    after = rank + data if stage < pipeline - 1 else None
    return before, after, list(range(stage * data, (stage + 1) * data))


def _partners_case(rank: int, data: int, pipeline: int) -> Case:
    total = data * pipeline
    right = before, after, same = _partners(rank, data, pipeline)
    row = list(range(rank - rank % pipeline, rank - rank % pipeline + pipeline))
    near = rank - 1 if rank else None, rank + 1 if rank + 1 < total else None
    start = row[0]
    ring = start + (rank - start - 1) % pipeline, start + (rank - start + 1) % pipeline
    others = [other for other in same if other != rank]
    a_list = f"The ranks are right; give the third as a list: {same}."
    round_all = (rank - 1) % total, (rank + 1) % total
    ends = "The first stage has nobody before it, the last nobody after it: None."
    known = [
        (_by_columns(rank, data, pipeline), ALONG_A_ROW),
        ((*near, same), f"Rank {rank} stands at an end of its row: its neighbour is in another."),
        ((*ring, same), f"A pipeline is no ring. {ends}"),
        ((*round_all, same), f"A mesh is no ring. {ends}"),
        ((-1 if before is None else before, -1 if after is None else after, same), ends),
        ((after, before, same), "Before and after are exchanged: activations go to higher stages."),
        ((before, after, others), "The group holds the rank itself too: it averages its own part."),
        ((before, after, set(same)), a_list),
        ((before, after, range(rank % pipeline, total, pipeline)), a_list),
        ((before, after, row), "That is the pipeline; averaged is over those of the same stage."),
        ((before, after, list(range(total))), "Only ranks with the same stage have its weights."),
    ]
    given = f"rank {rank} of a mesh of {data} x {pipeline} (data, pipeline)"
    hint = "Row and stage of a rank: divmod(rank, pipeline)."
    return Case(given, (rank, data, pipeline), right, known, hint, _same_partners)


def _same_partners(result: Any, expected: Any) -> bool:
    """As `same`, where the group may also be an array or a tensor."""
    if isinstance(result, tuple | list):
        result = [each.tolist() if hasattr(each, "tolist") else each for each in result]
    return same(result, expected)


def check_columns(attempt: Callable[[Schedule, int], list[list[str]]]) -> Verdict:
    """Check `my_columns(schedule, num_stages)`.

    Args:
        attempt: Returns a row of texts per device, "" where it waits, all rows of one length.
    """
    if not callable(attempt):
        return no_function(attempt, WHERE_COLUMNS)
    sizes = (("naive", 2, 2, 1), ("gpipe", 2, 2, 2), ("1f1b", 3, 3, 4))
    sizes += (("interleaved", 4, 2, 4), ("zb-h1", 3, 3, 4), ("zb-v", 4, 2, 12))
    for name, stages, devices, microbatches in sizes:
        schedule = make_schedule(name, stages, devices, microbatches)
        result, problem = try_out(attempt, [list(row) for row in schedule], stages)
        if result is ...:
            return not_attempted()
        given = f"{name}, {stages} stages on {devices} devices, {microbatches} micro-batch"
        lines = [f"Given {given}{'es' * (microbatches > 1)}:"]
        if problem and name.startswith("zb"):
            problem += " Here backwards are split: makes(action) turns I into the B of needs."
        problem = problem or columns_problem(result, schedule, stages)
        if problem:
            return not_yet([*lines, problem], WHERE_COLUMNS)
    return correct("Nobody starts before what it needs, or later.")


def check_padded(attempt: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> Verdict:
    """Check `my_padded(inputs, targets, microbatches)`.

    Args:
        attempt: Returns inputs and targets with rows added; any numbers will do in the inputs'.
    """
    sizes = (((3, 2), 2), ((10, 3), 4), ((8, 3), 4), ((1, 2), 4), ((5, 1, 2, 2), 8))
    return check_cases(attempt, [_padded_case(*size) for size in sizes], where=WHERE_PADDED)


def _padded(inputs: Tensor, targets: Tensor, more: int, fill: int = NOT_COUNTED) -> Any:
    rows = torch.cat([inputs, inputs.new_zeros(more, *inputs.shape[1:])])
    return rows, torch.cat([targets, targets.new_full((more,), fill)])


def _same_but_for_filling(rows: int) -> Callable[[Any, Any], bool]:
    """Compare all but the numbers in the added rows: they count for nothing."""

    def compare(result: Any, expected: Any) -> bool:
        if not (_is_pair(result) and _is_pair(expected)):
            return same(result, expected)
        alike = result[0].shape == expected[0].shape and result[1].dtype == expected[1].dtype
        return alike and same((result[0][:rows], result[1]), (expected[0][:rows], expected[1]))

    return compare


def _is_pair(value: Any) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(isinstance(each, Tensor) and each.ndim > 0 for each in value)


def _padded_case(shape: tuple[int, ...], parts: int) -> Case:
    rows = shape[0]
    inputs = torch.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    targets = torch.arange(rows)
    more = -rows % parts
    right = _padded(inputs, targets, more)
    fewer = rows // parts * parts
    mean = "A target from 0 on is a class: the loss counts such a row. -100 is left out."
    known = [
        (_padded(inputs, targets, more, 0), mean),
        (_padded(inputs, targets, more, -1), "-1 is not left out: ignore_index is -100."),
        (_padded(inputs, targets, parts - rows % parts), "Nothing is missing here: add no row."),
        (
            _padded(inputs, targets, rows % parts),
            "That many are over, not missing.",
        ),
        ((inputs, targets), "Nothing was added; the parts are still of two sizes."),
        ((inputs[:fewer], targets[:fewer]), "Rows were left out: add some instead."),
        ((right[0], targets), "Inputs and targets have to be equally long."),
        ((right[0], right[1].float()), "Targets are classes: they stay whole numbers (int64)."),
        (tuple(each.roll(more, 0) for each in right), "Add the rows behind those of the batch."),
        (right[::-1], "First the inputs, then the targets."),
        (right[0], "Two things are asked for: (inputs, targets)."),
    ]
    given = f"inputs of shape {tuple(shape)}, targets {targets.tolist()}, {parts} micro-batches"
    hint = "Missing are -rows % microbatches rows."
    is_same = _same_but_for_filling(rows)
    return Case(given, (inputs, targets, parts), right, known, hint, is_same)
