"""What a ring all-reduce sends, step by step: counted, without a process.

Page `collectives`.
"""

from mpcourse.schedules.actions import check_count

Chunks = list[list[tuple[int, ...]]]  # per rank and chunk: the ranks whose numbers are in the sum


def ring_states(count: int) -> list[Chunks]:
    """What each rank holds of each chunk during a ring all-reduce of `count` ranks.

    Args:
        count: Ranks, and chunks of the tensor; 1 or more.

    Returns:
        2 (count - 1) + 1 states: state 0 is before anything is sent, state s after step s. In step
        s = 1, 2, … rank r passes chunk r - s (modulo `count`) on to rank r + 1, which adds it
        in the first round (steps 1 to count - 1) and in the second keeps it in place of its own.
    """
    check_count("count", count)
    states: list[Chunks] = [[[(rank,)] * count for rank in range(count)]]
    for step in range(1, 2 * (count - 1) + 1):
        before = states[-1]
        after = [list(row) for row in before]
        for rank in range(count):
            chunk = passed_chunk(count, rank, step)
            right = (rank + 1) % count
            own = before[right][chunk] if step < count else ()
            after[right][chunk] = tuple(sorted((*own, *before[rank][chunk])))
        states.append(after)
    return states


def passed_chunk(count: int, rank: int, step: int) -> int:
    """Which chunk a rank passes on in a step of the ring, both rounds counted through from 1."""
    return (rank - step) % count
