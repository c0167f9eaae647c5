"""Solutions: a ragged batch filled up, an order in columns of time, ranks on a mesh."""

import torch

from mpcourse.schedules.actions import makes, needs


def my_padded(inputs, targets, microbatches):
    """What is missing is minus the number of rows, modulo the number of micro-batches.

    `new_zeros` and `new_full` keep type and device. When nothing is missing, `cat` gets an empty
    tensor, and no case of its own is needed.
    """
    more = -len(inputs) % microbatches
    rows = inputs.new_zeros(more, *inputs.shape[1:])
    return torch.cat([inputs, rows]), torch.cat([targets, targets.new_full((more,), -100)])


def my_partners(rank, data, pipeline):
    """Ranks are numbered along a row, so the stage is what is left over, modulo `pipeline`.

    Neighbours in a pipeline differ by 1, except at its two ends. All ranks of a stage differ by
    `pipeline`: that is the step from row to row.
    """
    stage = rank % pipeline
    before = rank - 1 if stage > 0 else None
    after = rank + 1 if stage + 1 < pipeline else None
    return before, after, list(range(stage, data * pipeline, pipeline))


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
