"""Exercises of page `ranks_and_hosts`: where a run goes on, who brought it down, saved pieces."""

import re

import numpy as np

from mpcourse.exercises.exercise import Exercise, call_for_numbers, short

# 1. The step to go on at


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


def folder(saved, parts=()):
    """The names of each rank's complete files, and of those of which a part is written."""
    named = [(rank, step, "pt") for rank, steps in enumerate(saved) for step in steps]
    named += [(rank, step, "part") for rank, step in parts]
    names = [f"rank{rank}-step{step:06d}.{end}" for rank, step, end in named]
    return sorted(names, key=lambda name: name[::-1]), len(saved)  # a folder promises no order


def resuming(choose, ranks=None, begins="rank{}-", read=int):
    """choose(sets of steps), of the ranks that count, read from names that begin so."""

    def attempt(names, world_size):
        sets = [
            {
                read(re.search(r"step(\d+)", n)[1])
                for n in names
                if n.startswith(begins.format(rank)) and n.endswith(".pt")
            }
            for rank in range(world_size)
        ]
        return choose([steps for steps in sets if steps or ranks is None])

    return attempt


def common(sets, pick=max):
    return pick(set.intersection(*sets), default=None) if sets else None


def by_trying(names, world_size):
    steps = {int(re.search(r"step(\d+)", name)[1]) for name in names}
    for step in sorted(steps, reverse=True):
        if all(f"rank{rank}-step{step:06d}.pt" in names for rank in range(world_size)):
            return step
    return None


LACKING = "Not every rank has a file of that step: its stages would go on from another."

check_resume = Exercise(
    my_resume_step,
    read_again='"Where does a killed run go on?"',
    cases=[
        folder([[2], [2]]),
        folder([[4, 5], [4, 5]]),
        folder([[2, 3], [1, 2]]),
        folder([[4, 8], [4, 6]]),
        folder([[3, 4], [3], [3, 4]], parts=[(1, 4)]),
        folder([[], []]),
        folder([[1], []]),
        folder([[999_999, 1_000_000]] * 2),
        folder([[7, 8], [7], *[[7, 8]] * 9]),
    ],
    given=lambda names, world_size: (
        f"{world_size} ranks and the files {', '.join(names[:5]) or '(none)'}"
        + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    ),
    hint="For each rank the set of its complete steps; then what all the sets share.",
    wrong={
        "A .part is a file that was never finished: its rank was killed.": (
            lambda names, n: my_resume_step([name.replace(".part", ".pt") for name in names], n)
        ),
        "A rank that has saved nothing counts too: world_size says how many.": (
            resuming(common, ranks="those with files")
        ),
        LACKING: [
            resuming(lambda sets: max(set.union(*sets), default=None)),
            lambda names, n: max(
                (int(re.search(r"step(\d+)", each)[1]) for each in names), default=None
            ),
        ],
        "The oldest of the newest is not common to all: one lacks it.": [
            resuming(lambda sets: min(map(max, sets)) if all(sets) else None),
            resuming(lambda sets: min(map(max, sets), default=None), ranks="those with files"),
        ],
        "Nothing is common to all: return None, and the run begins anew.": [
            lambda *given: my_resume_step(*given) or 0,
            lambda *given: my_resume_step(*given) or -1,
        ],
        "That is a text: int(...) makes a number of it.": lambda *given: (
            (step := my_resume_step(*given)) and f"{step:06d}"
        ),
        "That is a number of files; the step stands in their names.": (
            lambda names, n: sum(bool(re.match(r"rank0-step\d+\.pt", name)) for name in names)
        ),
        "The number in a name counts finished steps: the run goes on at that index, not one "
        "later.": lambda *given: (step := my_resume_step(*given)) and step + 1,
        "None says that no step is common to all ranks; {expected} is one.": lambda *given: None,
        "Compare steps as numbers: as texts 999999 is after 1000000.": resuming(
            lambda sets: (step := common(sets)) and int(step), read=str
        ),
        "rank10 begins like rank1: look for the whole number.": resuming(common, begins="rank{}"),
        "An older step; the last is asked.": resuming(lambda sets: common(sets, min)),
        "it raised ValueError: max()": resuming(lambda sets: max(set.intersection(*sets))),
        "For each rank the set of its complete steps": lambda *given: 5_000_000,
    },
    also_right=[by_trying],
)

# 2. Who brought the run down?

LOST = "RuntimeError: Connection closed by peer"
BAD, SHAPES = "ValueError: the batch has no rows", "RuntimeError: shapes cannot be multiplied"
ENDED = -15  # SIGTERM: the launcher ends those that are left
NEIGHBOUR = "That rank's last words speak of another one: it lost its neighbour, who went first."
LAUNCHER = "Signal 15 (-15) comes from the launcher, which ends those that are left."
WELL = "Exit code 0 is a rank that ended well."
IT_WAS_FIRST = "Rank {} has no excuse either, and it ended first."
SOMEBODY = "Somebody failed: rank {} has no excuse."
NOBODY = "Nobody failed, all ended with 0: return None."


def my_culprit(ends):
    """Leave out all who have an excuse; who is left brought the run down.

    An excuse is to have ended well, to have been ended by the launcher, or to have lost a
    connection. A rank that was killed has no last words, but a code of its own.
    """
    for rank, code, words in ends:
        if code not in (0, -15) and "Connection closed" not in words:
            return rank
    return None


def blamed(attempt, ends):
    return attempt(list(ends)), ends


def why_not(outcome, expected):
    """What the one that was blamed had for an excuse."""
    (rank, ends), (right, _) = outcome, expected
    code, words = {r: (code, words) for r, code, words in ends}.get(rank, (None, ""))
    if right is None:
        return WELL if code == 0 else NOBODY
    if rank is None:
        return SOMEBODY.format(right)
    if code is None:
        return "Leave out who ended well (0), who was ended (-15), and who lost a connection."
    excuses = {0: WELL, ENDED: LAUNCHER}
    return excuses.get(code) or (NEIGHBOUR if words == LOST else IT_WAS_FIRST.format(right))


def first_who(is_meant):
    return lambda ends: next((end[0] for end in ends if is_meant(*end)), None)


check_culprit = Exercise(
    my_culprit,
    read_again='"Who is to blame?"',
    cases=[
        ([(0, 1, LOST), (1, -9, "")],),
        ([(2, 1, SHAPES), (0, 1, LOST), (1, ENDED, "")],),
        ([(0, -11, ""), (1, 1, LOST)],),
        ([(1, ENDED, ""), (0, 1, LOST), (3, 1, BAD), (2, 0, "")],),
        ([(0, 1, LOST), (1, 1, LOST), (2, 17, "")],),
        ([(0, ENDED, ""), (2, 1, BAD), (1, -9, "")],),
        ([(0, 0, ""), (1, 0, "")],),
    ],
    given=lambda ends: "; ".join(f"rank {r}: code {c}, {w!r}" for r, c, w in ends),
    play=blamed,
    same=lambda outcome, expected: (
        type(outcome[0]) is type(expected[0]) and outcome[0] == expected[0]
    ),
    compared=lambda outcome, expected: [
        f"expected {short(expected[0])}",
        f"got {short(outcome[0])}",
    ],
    hint=why_not,
    wrong={
        NEIGHBOUR: [
            first_who(lambda rank, code, words: code != 0),
            first_who(lambda rank, code, words: words),
        ],
        LAUNCHER: [
            first_who(lambda rank, code, words: code < 0 or "Value" in words),
            lambda ends: min(ends, key=lambda end: end[1])[0],
        ],
        "A RuntimeError of its own is no excuse; a lost connection is.": (
            first_who(lambda rank, code, words: code not in (0, -15) and "Runtime" not in words)
        ),
        SOMEBODY.format(1): lambda ends: None,
        IT_WAS_FIRST.format(2): lambda ends: my_culprit(ends[::-1]),
        WELL: lambda ends: my_culprit(ends) or 0,
        NOBODY: lambda ends: -1 if my_culprit(ends) is None else my_culprit(ends),
        "Leave out who ended well": lambda ends: 77,
    },
    also_right=[
        first_who(lambda rank, code, words: code and code != ENDED and "peer" not in words)
    ],
)

# 3. Which piece of which file?


def my_overlaps(saved, start, stop):
    """Walk along the files and keep the overlap of each one's rows with the wanted ones.

    The overlap begins at the larger start and ends at the smaller end. It is empty when that is
    the wrong way round. What is returned counts within the file, so its first row is taken off.
    """
    pieces, first = [], 0
    for file, rows in enumerate(saved):
        low, high = max(start, first), min(stop, first + rows)
        if low < high:
            pieces.append((file, low - first, high - first))
        first += rows
    return pieces


def each_piece(change):
    """change(file, from, to, rows of each file) on each right piece."""
    return lambda saved, *rows: [change(*piece, saved) for piece in my_overlaps(saved, *rows)]


def without_leaving_out(saved, start, stop):
    firsts = [sum(saved[:file]) for file in range(len(saved))]
    return [
        (file, max(start - first, 0), min(stop - first, rows))
        for file, (first, rows) in enumerate(zip(firsts, saved, strict=True))
    ]


def row_by_row(saved, start, stop):
    places = [(file, row) for file, rows in enumerate(saved) for row in range(rows)]
    wanted = {}
    for file, row in places[start:stop]:
        wanted.setdefault(file, []).append(row)
    return [np.array([file, rows[0], rows[-1] + 1]) for file, rows in wanted.items()]


check_overlaps = Exercise(
    my_overlaps,
    read_again='"Saved by two, loaded by three?"',
    cases=[
        ([4, 4], 0, 8),
        ([4, 4], 0, 4),
        ([4, 4], 3, 6),
        ([4, 4], 4, 8),
        ([3, 3, 2], 2, 7),
        ([2, 0, 5], 1, 4),
        ([6], 2, 2),
        ([10, 3], 11, 13),
    ],
    given="files of {} rows; rows {} to {} (not included) are wanted",
    play=call_for_numbers,
    hint="The overlap of two ranges begins at the larger start and ends at the smaller end.",
    wrong={
        "Count the rows within each file, from 0: its own first row is row 0.": (
            each_piece(
                lambda file, a, b, saved: (file, a + sum(saved[:file]), b + sum(saved[:file]))
            )
        ),
        "The end is not included, as in a slice.": (
            each_piece(lambda file, a, b, saved: (file, a, b - 1))
        ),
        "The third number is where the piece ends in its file, not how many rows it has.": (
            each_piece(lambda file, a, b, saved: (file, a, b - a))
        ),
        "Whole files hold rows of others, too.": (
            each_piece(lambda file, a, b, saved: (file, 0, saved[file]))
        ),
        "Rows may come from more than one file.": lambda *given: my_overlaps(*given)[:1],
        "Leave out a file of which nothing is wanted: it need not be read.": without_leaving_out,
        "Nothing to read is an empty list.": lambda *given: my_overlaps(*given) or None,
        "The overlap of two ranges": [lambda *given: my_overlaps(*given)[::-1], lambda *given: 3],
    },
    also_right=[row_by_row],
)
