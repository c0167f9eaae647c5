"""Solutions: a mesh, columns of time, a killed run, which parallelism goes where."""

import re

from mpcourse.schedules.actions import makes, needs


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


def my_resume_step(names, world_size):
    """For each rank the set of its complete steps, then what all sets share, then the largest.

    The whole name has to fit, so a `.part` is left out and rank10 is not taken for rank1. A rank
    without files has an empty set, and then nothing is shared. Steps are compared as numbers.
    """
    steps = [set() for _ in range(world_size)]
    for name in names:
        match = re.fullmatch(r"rank(\d+)-step(\d+)\.pt", name)
        if match:
            steps[int(match[1])].add(int(match[2]))
    return max(set.intersection(*steps), default=None)


def my_dimensions(lacking, links):
    """Take what the table says, DDP for what is left, and hand out the links by speed.

    `often` lists the four by how often something crosses. The dimensions are sorted by speed, so
    the rarest gets the slowest links. Where a dimension stands does not matter, only its links.
    """
    takes = {"all layers": "pipeline", "weights": "fsdp", "one layer": "tensor"}
    often = ["ddp", "pipeline", "fsdp", "tensor"]
    names = [takes[what] for what in lacking]
    names += ["ddp"] * (len(links) - len(names))
    result = [None] * len(links)
    slowest_first = sorted(range(len(links)), key=lambda dimension: links[dimension])
    for dimension, name in zip(slowest_first, sorted(names, key=often.index), strict=True):
        result[dimension] = name
    return result
