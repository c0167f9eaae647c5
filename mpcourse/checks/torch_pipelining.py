"""Checks: ranks on a mesh, columns of time, a killed run, which parallelism where."""

from collections.abc import Callable, Sequence
from typing import Any

from mpcourse.checks.attempted_columns import columns_problem
from mpcourse.checks.attempted_dimensions import dimension_cases
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    try_out,
)
from mpcourse.schedules.actions import Schedule
from mpcourse.schedules.named import make_schedule

WHERE_MESH = '"Two pipelines beside each other: who talks to whom?"'
WHERE_COLUMNS = '"Can torch run our schedule?" and the text of the exercise'
ALONG_A_ROW = "Ranks are numbered along a row: 0, 1, and so on are one pipeline."
WHERE_DIMENSIONS = '"Where do FSDP and tensor parallelism belong?"'
WHERE_RESUME = '"What does a killed rank cost?"'

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
    ends = "The first stage has nobody before it, the last nobody after it: None."
    known = [
        (_by_columns(rank, data, pipeline), ALONG_A_ROW),
        ((*near, same), f"Rank {rank} stands at an end of its row: its neighbour is in another."),
        ((*ring, same), f"A pipeline is no ring. {ends}"),
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
    return Case(given, (rank, data, pipeline), right, known, hint)


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


def check_dimensions(attempt: Callable[[list[str], list[float]], list[str]]) -> Verdict:
    """Check `my_dimensions(lacking, links)`: which parallelism goes on which mesh dimension?

    Args:
        attempt: Takes what does not fit (at most one thing per dimension) and how fast
            the links along each dimension are; returns a name per dimension.
    """
    return check_cases(attempt, dimension_cases(), where=WHERE_DIMENSIONS)


def check_resume(attempt: Callable[[list[str], int], int | None]) -> Verdict:
    """Check `my_resume_step(names, world_size)`: from which step can a killed run go on?

    Args:
        attempt: Takes the names of the files in the folder, returns a step or None.
    """
    cases = [_resume_case(saved, parts) for saved, parts in RESUME]
    return check_cases(attempt, cases, where=WHERE_RESUME)


# Per rank: the steps whose files are complete, and those of which a part is written.
RESUME: tuple[tuple[list[list[int]], list[list[int]]], ...] = (
    ([[2], [2]], [[], []]),
    ([[2, 3], [1, 2]], [[], []]),
    ([[4, 8], [4, 6]], [[], []]),
    ([[3, 4], [3], [3, 4]], [[], [4], []]),
    ([[], []], [[], []]),
    ([[1], []], [[], []]),
    ([[999_999, 1_000_000], [999_999, 1_000_000]], [[], []]),
    ([[7, 8], [7]] + [[7, 8]] * 9, [[] for _ in range(11)]),
)


def _resume_case(saved: Sequence[Sequence[int]], parts: Sequence[Sequence[int]]) -> Case:
    ends = {"pt": saved, "part": parts}
    names = [
        f"rank{rank}-step{step:06d}.{end}"
        for end, ranks in ends.items()
        for rank, steps in enumerate(ranks)
        for step in steps
    ]
    names.sort(key=lambda name: name[::-1])  # a folder promises no order
    right = _common(saved)
    both = [[*done, *begun] for done, begun in zip(saved, parts, strict=True)]
    present = [steps for steps in saved if steps]
    newest = [max(steps) for steps in present]
    lacking = "Not every rank has a file of that step: its stages would go on from another."
    known: list[tuple[Any, str]] = [
        (_common(both), "A .part is a file that was never finished: its rank was killed."),
        (_common(present), "A rank that has saved nothing counts too: world_size says how many."),
        (max(newest, default=None), lacking),
        (max((s for steps in both for s in steps), default=None), lacking),
        (min(newest, default=None), "The oldest of the newest is not common to all: one lacks it."),
        (0, "Nothing is common to all: return None, and the run begins anew."),
        (-1, "Nothing is common to all: return None, and the run begins anew."),
        (len(saved[0]), "That is a number of files; the step stands in their names."),
    ]
    if right is not None:
        counts = "The number in a name counts finished steps: the run goes on at that index"
        known.append((right + 1, f"{counts}, not one later."))
        known.append((None, f"None says that no step is common to all ranks; {right} is one."))
    if right == 1_000_000:
        known.insert(0, (999_999, "Compare steps as numbers: as texts 999999 is after 1000000."))
    if len(saved) > 10:
        known.insert(0, (8, "rank10 begins like rank1: look for the whole number."))
    if right is not None:
        known.append((min(set.intersection(*map(set, saved))), "An older step; the last is asked."))
    given = f"{len(saved)} ranks and the files {', '.join(names[:5]) or '(none)'}"
    given += f" and {len(names) - 5} more" if len(names) > 5 else ""
    hint = "For each rank the set of its complete steps; then what all the sets share."
    return Case(given, (names, len(saved)), right, known, hint)


def _common(ranks: Sequence[Sequence[int]]) -> int | None:
    shared = set.intersection(*map(set, ranks)) if ranks else set()
    return max(shared, default=None)
