"""Solutions: who brought a run down, where it goes on, which saved pieces a rank reads."""

import re


def my_culprit(ends):
    """Leave out all who have an excuse; who is left brought the run down.

    An excuse is to have ended well, to have been ended by the launcher, or to have lost a
    connection. A rank that was killed has no last words, but a code of its own.
    """
    for rank, code, words in ends:
        if code not in (0, -15) and "Connection closed" not in words:
            return rank
    return None


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
