"""Exercises of page `torch_pipelining`: a batch filled up, an order in columns, ranks on a mesh."""

import numpy as np
import torch
from torch import Tensor

from mpcourse.exercises.exercise import Exercise, NotYet, call_for_numbers, short
from mpcourse.schedules.actions import Action, makes, needs
from mpcourse.schedules.named import make_schedule

# 1. Rows that do not count

NOT_FINITE = "NaN in a row that does not count makes gradients NaN all the same: add zeros."


def my_padded(inputs, targets, microbatches):
    """What is missing is minus the number of rows, modulo the number of micro-batches.

    `new_zeros` and `new_full` keep type and device. When nothing is missing, `cat` gets an empty
    tensor, and no case of its own is needed.
    """
    more = -len(inputs) % microbatches
    rows = inputs.new_zeros(more, *inputs.shape[1:])
    return torch.cat([inputs, rows]), torch.cat([targets, targets.new_full((more,), -100)])


def padded(attempt, shape, parts, dtype):
    """What is returned, with its types; finite numbers in the added rows count for nothing."""
    inputs = torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=dtype).reshape(shape)
    result = attempt(inputs, torch.arange(shape[0]), parts)
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    if not is_pair or not all(isinstance(each, Tensor) and each.ndim for each in result):
        return result
    rows, targets = result
    added = rows[shape[0] :]
    if not added.isfinite().all():
        raise NotYet(NOT_FINITE)
    rows = torch.cat([rows[: shape[0]], torch.zeros_like(added)])
    return rows, targets, str(rows.dtype), str(targets.dtype)


def filled(more=lambda rows, parts: -rows % parts, target=-100, number=0.0):
    def attempt(inputs, targets, parts):
        size = more(len(inputs), parts)
        rows = inputs.new_full((size, *inputs.shape[1:]), number)
        return torch.cat([inputs, rows]), torch.cat([targets, targets.new_full((size,), target)])

    return attempt


def changed(change):
    """The right answer, and then changed."""
    return lambda i, t, parts: change(*my_padded(i, t, parts), i, t, parts)


def float_rows(inputs, targets, parts):
    rows = torch.cat([inputs, torch.zeros(-len(inputs) % parts, *inputs.shape[1:])])
    return rows, my_padded(inputs, targets, parts)[1]


def row_by_row(inputs, targets, parts):
    while len(inputs) % parts:
        inputs = torch.cat([inputs, inputs[-1:]])
    return [inputs, torch.tensor([*targets, *[-100] * (len(inputs) - len(targets))])]


check_padded = Exercise(
    my_padded,
    read_again='"What does it do with ten rows in four parts?"',
    cases=[
        ((3, 2), 2, torch.float64),
        ((10, 3), 4, torch.float64),
        ((8, 3), 4, torch.float32),
        ((1, 2), 4, torch.float32),
        ((5, 1, 2, 2), 8, torch.bfloat16),
    ],
    given=lambda shape, parts, dtype: (
        f"inputs of shape {shape} and {dtype}, targets {[*range(shape[0])]}, {parts} micro-batches"
    ),
    play=padded,
    hint="Missing are -rows % microbatches rows.",
    wrong={
        "A target from 0 on is a class: the loss counts such a row. -100 is left out.": (
            filled(target=0)
        ),
        "-1 is not left out: ignore_index is -100.": filled(target=-1),
        "Nothing is missing here: add no row.": filled(lambda rows, parts: parts - rows % parts),
        "That many are over, not missing.": filled(lambda rows, parts: rows % parts),
        "Nothing was added; the parts are still of two sizes.": lambda i, t, parts: (i, t),
        "Rows were left out: add some instead.": (
            lambda i, t, parts: (i[: len(i) // parts * parts], t[: len(t) // parts * parts])
        ),
        "Inputs and targets have to be equally long.": changed(
            lambda rows, ends, i, t, n: (rows, t)
        ),
        "Targets are classes: they stay whole numbers (int64).": (
            changed(lambda rows, ends, *_: (rows, ends.float()))
        ),
        "The inputs are of another type: new_zeros keeps it, torch.zeros is float32.": float_rows,
        NOT_FINITE: filled(number=float("nan")),
        "Add the rows behind those of the batch.": changed(
            lambda rows, ends, i, t, n: (rows.roll(-len(i) % n, 0), ends.roll(-len(i) % n, 0))
        ),
        "First the inputs, then the targets.": changed(lambda rows, ends, *_: (ends, rows)),
        "Two things are asked for: (inputs, targets).": changed(lambda rows, *_: rows),
        "-rows % microbatches": [
            filled(lambda rows, parts: 1),
            lambda i, t, parts: (i.numpy(), t),
            lambda i, t, parts: (i.sum(), t.sum()),
        ],
        "None is what a function without return": lambda i, t, parts: None,
    },
    also_right=[row_by_row],
)

# 2. An order in columns of time

NO_ROWS = "expected a list with one row per device, "
EMPTY_CELL = 'None stands where a device waits; in the text it is an empty cell, "".'
THEIR_TEXT = "The rows hold Actions; their text is asked for: str(action)."
OTHER_ORDER = "in this order; your row has "
LEAVE_EMPTY = "which it needs: leave a cell empty."
ONE_COLUMN = "Every action takes one column."
TOO_LONG = "leave out empty last columns."
FILL_UP = 'fill all up with "" to '


def my_columns(schedule, num_stages):
    """Column by column: a device takes its next action if all that it needs stands further left.

    What is done in a column counts from the next one on, so it is added only when all devices have
    had their turn. `makes` turns an I into the B that `needs` asks for. All rows grow together, so
    they end with the same length.
    """
    rows, position, done = [[] for _ in schedule], [0] * len(schedule), set()
    while any(place < len(row) for place, row in zip(position, schedule, strict=True)):
        now = set()
        for device, row in enumerate(schedule):
            action = row[position[device]] if position[device] < len(row) else None
            if action is not None and all(need in done for need in needs(action, num_stages)):
                rows[device].append(str(action))
                position[device] += 1
                now.add(makes(action))
            else:
                rows[device].append("")
        done |= now
    return rows


def in_columns(attempt, name, stages, devices, microbatches):
    schedule = make_schedule(name, stages, devices, microbatches)
    rows = attempt([list(row) for row in schedule], stages)
    if rows is None:
        raise NotYet("got None: that is what a function without return gives back.")
    if not isinstance(rows, list | tuple) or len(rows) != devices:
        raise NotYet(f"{NO_ROWS}{devices} in all; got {short(rows)}")
    for device, (row, actions) in enumerate(zip(rows, schedule, strict=True)):
        if not isinstance(row, list | tuple):
            raise NotYet(f"row {device} is no list: {short(row)}")
        if None in row:
            raise NotYet(EMPTY_CELL)
        if any(isinstance(entry, Action) for entry in row):
            raise NotYet(THEIR_TEXT)
        wanted, found = [str(action) for action in actions], [entry for entry in row if entry != ""]
        if found != wanted:
            raise NotYet(f"device {device} does {short(wanted)}, {OTHER_ORDER}{short(found)}")
    right = my_columns(schedule, stages)
    column, earliest = (
        {t: i for row in each for i, t in enumerate(row) if t} for each in (rows, right)
    )
    made = {makes(action): action for row in schedule for action in row}
    for action in sorted(made.values(), key=lambda action: earliest[str(action)]):
        mine, first = column[str(action)], earliest[str(action)]
        for source in (made[need] for need in needs(action, stages)):
            if column[str(source)] >= mine:
                place = "in the same column as" if column[str(source)] == mine else "before"
                raise NotYet(f"{action} stands {place} {source}, {LEAVE_EMPTY}")
        if mine > first:
            line = f"{action} could stand in column {first}; yours is {mine}."
            raise NotYet(line, ONE_COLUMN)
    lengths, longest = [len(row) for row in rows], len(right[0])
    if max(lengths) > longest:
        raise NotYet(f"A row has more than {longest} cells: {TOO_LONG}")
    if min(lengths) < longest:
        raise NotYet(f"The rows have {short(lengths)} cells; {FILL_UP}{longest}.")


def as_early_as_it_can(gap=1):
    """Rows filled in an order in which everything needed comes first, `gap` columns later."""

    def attempt(schedule, num_stages):
        order = my_columns(schedule, num_stages)
        rows, columns = [[] for _ in schedule], {}
        actions = {str(action): (d, action) for d, row in enumerate(schedule) for action in row}
        for device, action in (actions[t] for each in zip(*order, strict=True) for t in each if t):
            needed = (columns.get(need, -1) for need in needs(action, num_stages))
            first = max([0, *(column + gap for column in needed)])
            rows[device] += [""] * (first - len(rows[device])) + [str(action)]
            columns[makes(action)] = len(rows[device]) - 1
        longest = max(map(len, rows))
        return [row + [""] * (longest - len(row)) for row in rows]

    return attempt


def without_makes(schedule, num_stages):
    columns = {action: None for row in schedule for action in row}
    needed = [need for action in columns for need in needs(action, num_stages)]
    return [columns[need] for need in needed] and my_columns(schedule, num_stages)


def right_but(change):
    return lambda schedule, num_stages: change(my_columns(schedule, num_stages))


check_columns = Exercise(
    my_columns,
    read_again='"Can one engine run the other\'s order?" and the text of the exercise',
    cases=[
        ("naive", 2, 2, 1),
        ("gpipe", 2, 2, 2),
        ("1f1b", 3, 3, 4),
        ("interleaved", 4, 2, 4),
        ("zb-h1", 3, 3, 4),
        ("zb-v", 4, 2, 12),
    ],
    given="{}, {} stages on {} devices, {} micro-batch(es)",
    play=in_columns,
    same=None,
    hint="Where backwards are split, makes(action) turns I into the B of needs.",
    correct="Nobody starts before what it needs, or later.",
    wrong={
        f"1F0 stands in the same column as 0F0, {LEAVE_EMPTY}": [
            lambda schedule, n: [[str(action) for action in row] for row in schedule],
            as_early_as_it_can(gap=0),
        ],
        "makes(action) turns I into the B": without_makes,
        EMPTY_CELL: right_but(lambda rows: [[text or None for text in row] for row in rows]),
        "could stand in column 0; yours is 1": right_but(lambda rows: [["", *row] for row in rows]),
        ONE_COLUMN: right_but(lambda rows: [[t for cell in r for t in (cell, "")] for r in rows]),
        FILL_UP: right_but(lambda rows: [" ".join(row).rstrip().split(" ") for row in rows]),
        TOO_LONG: right_but(lambda rows: [[*row, ""] for row in rows]),
        f"{NO_ROWS}2 in all": right_but(lambda rows: list(map(list, zip(*rows, strict=True)))),
        "row 0 is no list": right_but(lambda rows: ["".join(row) for row in rows]),
        OTHER_ORDER: right_but(lambda rows: rows[::-1]),
        THEIR_TEXT: lambda schedule, n: schedule,
        "got None: that is what a function without return": lambda schedule, n: None,
    },
    also_right=[as_early_as_it_can()],
)

# 3. Ranks on a mesh


def my_partners(rank, data, pipeline):
    """Ranks are numbered along a row, so the stage is what is left over, modulo `pipeline`.

    Neighbours in a pipeline differ by 1, except at its two ends. All ranks of a stage differ by
    `pipeline`: that is the step from row to row.
    """
    stage = rank % pipeline
    before = rank - 1 if stage > 0 else None
    after = rank + 1 if stage + 1 < pipeline else None
    return before, after, list(range(stage, data * pipeline, pipeline))


def by_columns(rank, data, pipeline):
    stage = rank // data
    before = rank - data if stage else None
    after = rank + data if stage + 1 < pipeline else None
    return before, after, list(range(stage * data, stage * data + data))


def partners_but(neighbours=lambda a, b, rank, d, n: (a, b), group=lambda g, rank, d, n: g):
    def attempt(rank, data, pipeline):
        before, after, same_stage = my_partners(rank, data, pipeline)
        place = rank, data, pipeline
        return *neighbours(before, after, *place), group(same_stage, *place)

    return attempt


def by_a_grid(rank, data, pipeline):
    grid = torch.arange(data * pipeline).reshape(data, pipeline)
    row, stage = divmod(rank, pipeline)
    along = [None, *grid[row].tolist(), None]
    return along[stage], along[stage + 2], grid[:, stage]


NOBODY = "The first stage has nobody before it, the last nobody after it: None."
A_LIST = "The ranks are right; give the third as a list."
ZERO = "Rank 0 is somebody, although 0 counts as false: ask whether stage > 0."

check_partners = Exercise(
    my_partners,
    read_again='"Two pipelines beside each other: who talks to whom?"',
    cases=[
        (0, 2, 2),
        (1, 2, 2),
        (3, 2, 2),
        (5, 2, 4),
        (4, 2, 4),
        (2, 4, 2),
        (0, 8, 1),
        (6, 1, 8),
    ],
    given="rank {} of a mesh of {} x {} (data, pipeline)",
    play=call_for_numbers,
    hint="Row and stage of a rank: divmod(rank, pipeline).",
    wrong={
        "Ranks are numbered along a row: 0, 1, and so on are one pipeline.": by_columns,
        "Rank {0} stands at an end of its row: its neighbour is in another.": partners_but(
            lambda a, b, rank, d, n: (
                rank - 1 if rank else None,
                rank + 1 if rank + 1 < d * n else None,
            )
        ),
        f"A pipeline is no ring. {NOBODY}": partners_but(
            lambda a, b, rank, d, n: (
                rank - rank % n + (rank - 1) % n,
                rank - rank % n + (rank + 1) % n,
            )
        ),
        f"A mesh is no ring. {NOBODY}": partners_but(
            lambda a, b, rank, d, n: ((rank - 1) % (d * n), (rank + 1) % (d * n))
        ),
        NOBODY: [
            partners_but(lambda a, b, *_: (-1 if a is None else a, b)),
            partners_but(lambda a, b, *_: (-1 if a is None else a, -1 if b is None else b)),
        ],
        ZERO: [
            partners_but(lambda a, b, *_: (a or None, b)),
            partners_but(lambda a, b, rank, d, n: (rank % n and rank - 1, b)),
        ],
        "Before and after are exchanged: activations go to higher stages.": (
            partners_but(lambda a, b, *_: (b, a))
        ),
        "The group holds the rank itself too: it averages its own part.": (
            partners_but(group=lambda g, rank, d, n: [other for other in g if other != rank])
        ),
        A_LIST: [
            partners_but(group=lambda g, *_: set(g)),
            partners_but(group=lambda g, rank, d, n: range(rank % n, d * n, n)),
        ],
        "That is the pipeline; averaged is over those of the same stage.": partners_but(
            group=lambda g, rank, d, n: [*range(rank - rank % n, rank - rank % n + n)]
        ),
        "Only ranks with the same stage have its weights.": (
            partners_but(group=lambda g, rank, d, n: np.arange(d * n))
        ),
        "None is what a function without return": lambda rank, data, pipeline: None,
    },
    also_right=[by_a_grid],
)
