"""Checks: who brought a run down, where it goes on, which saved pieces a rank reads.

Page `ranks_and_hosts`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mpcourse.checks.verdict import Case, Verdict, check_cases, same

WHERE_CULPRIT = '"Who is to blame?"'
WHERE_RESUME = '"Where does a killed run go on?"'
WHERE_PIECES = '"Saved by two, loaded by three?"'

End = tuple[int, int, str]  # rank, exit code, last words
Piece = tuple[int, int, int]  # file, from which row of it, to which


def check_culprit(attempt: Callable[[list[End]], int | None]) -> Verdict:
    """Check `my_culprit(ends)`: which rank brought the run down?

    Args:
        attempt: Takes (rank, exit code, last words) in the order in which the ranks ended.
    """
    cases = [_culprit_case(right, ends) for right, ends in CULPRITS]
    return check_cases(attempt, cases, where=WHERE_CULPRIT)


LOST = "RuntimeError: Connection closed by peer"
BAD = "ValueError: the batch has no rows"
ENDED = -15  # SIGTERM: the launcher ends those that are left

# (the culprit, how the ranks ended, in order of time)
CULPRITS: tuple[tuple[int | None, list[End]], ...] = (
    (1, [(0, 1, LOST), (1, -9, "")]),
    (2, [(2, 1, BAD), (0, 1, LOST), (1, ENDED, "")]),
    (0, [(0, -11, ""), (1, 1, LOST)]),
    (3, [(1, ENDED, ""), (0, 1, LOST), (3, 1, BAD), (2, 0, "")]),
    (2, [(0, 1, LOST), (1, 1, LOST), (2, 17, "")]),
    (2, [(0, ENDED, ""), (2, 1, BAD), (1, -9, "")]),
    (None, [(0, 0, ""), (1, 0, "")]),
)


def _culprit_case(right: int | None, ends: list[End]) -> Case:
    failed = [end for end in ends if end[1] != 0]
    said = [end for end in ends if end[2]]
    orders = {end[0]: end[1] for end in ends}
    lost = "That rank's last words speak of another one: it lost its neighbour, who went first."
    known: list[tuple[Any, str]] = [
        *((rank, lost) for rank, _, words in ends if words == LOST),
        *(
            (rank, "Signal 15 (-15) comes from the launcher, which ends those that are left.")
            for rank, code, _ in ends
            if code == ENDED
        ),
        *(
            (rank, f"Rank {right} has no excuse either, and it ended first.")
            for rank, code, words in ends
            if code not in (0, ENDED) and words != LOST and rank != right
        ),
        *((rank, "Exit code 0 is a rank that ended well.") for rank, c, _ in ends if c == 0),
        (said[0][0] if said else -1, lost),
        (min(orders, key=orders.get), "Not the smallest code: ask what each one means."),
        (failed[0][0] if failed else 0, "The first to end is often only the first to notice."),
    ]
    if right is not None:
        known.append((None, f"Somebody failed: rank {right} has no excuse."))
    given = "; ".join(f"rank {r}: code {c}, {w!r}" for r, c, w in ends)
    hint = "Leave out who ended well (0), who was ended (-15), and who lost a connection."
    return Case(given, (ends,), right, known, hint)


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
    ([[4, 5], [4, 5]], [[], []]),
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
        (f"{right or 0:06d}", "That is a text: int(...) makes a number of it."),
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


def check_overlaps(attempt: Callable[[Sequence[int], int, int], list[Piece]]) -> Verdict:
    """Check `my_overlaps(saved, start, stop)`: which rows of which file make rows start to stop?

    Args:
        attempt: Takes how many rows each file holds, in order; returns (file, from, to) in order.
    """
    places = (
        ([4, 4], 0, 8),
        ([4, 4], 0, 4),
        ([4, 4], 3, 6),
        ([4, 4], 4, 8),
        ([3, 3, 2], 2, 7),
        ([2, 0, 5], 1, 4),
        ([6], 2, 2),
        ([10, 3], 11, 13),
    )
    return check_cases(attempt, [_pieces_case(*place) for place in places], where=WHERE_PIECES)


def _pieces(saved: Sequence[int], start: int, stop: int) -> list[Piece]:
    pieces, first = [], 0
    for file, rows in enumerate(saved):
        low, high = max(start, first), min(stop, first + rows)
        if low < high:
            pieces.append((file, low - first, high - first))
        first += rows
    return pieces


def _pieces_case(saved: list[int], start: int, stop: int) -> Case:
    right = _pieces(saved, start, stop)
    firsts = [sum(saved[:file]) for file in range(len(saved))]
    known = [
        (
            [(file, low + firsts[file], high + firsts[file]) for file, low, high in right],
            "Count the rows within each file, from 0: its own first row is row 0.",
        ),
        (
            [(file, low, high - 1) for file, low, high in right],
            "The end is not included, as in a slice.",
        ),
        (
            [(file, low, high - low) for file, low, high in right],
            "The third number is where the piece ends in its file, not how many rows it has.",
        ),
        ([(file, 0, saved[file]) for file, _, _ in right], "Whole files hold rows of others, too."),
        (right[:1], "Rows may come from more than one file."),
        (
            [
                (file, max(start - firsts[file], 0), min(stop - firsts[file], saved[file]))
                for file in range(len(saved))
            ],
            "Leave out a file of which nothing is wanted: it need not be read.",
        ),
        (None, "Nothing to read is an empty list."),
    ]
    given = f"files of {saved} rows; rows {start} to {stop} (not included) are wanted"
    hint = "The overlap of two ranges begins at the larger start and ends at the smaller end."
    return Case(given, (saved, start, stop), right, known, hint, _same_pieces)


def _same_pieces(result: Any, expected: Any) -> bool:
    """As `same`; arrays and tensors of numbers will do."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if isinstance(result, tuple | list):
        result = [each.tolist() if hasattr(each, "tolist") else each for each in result]
    return same(result, expected)
