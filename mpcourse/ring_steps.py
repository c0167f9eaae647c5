"""What an all-reduce sends, step by step and in all: counted, without a process (page 03)."""

Held = list[list[tuple[int, ...]]]  # per rank and chunk: the ranks whose numbers are in the sum


def ring_states(count: int) -> list[Held]:
    """What each rank holds of each chunk during a ring all-reduce of `count` ranks.

    Args:
        count: Ranks, and chunks of the tensor; 1 or more.

    Returns:
        2 (count - 1) + 1 states, the first before anything is sent. In step s of the first round
        rank r passes chunk r - s on to rank r + 1, which adds it; in step s of the second round
        chunk r + 1 - s, which rank r + 1 keeps in place of its own (all numbers modulo `count`).
    """
    _check(count)
    states: list[Held] = [[[(rank,)] * count for rank in range(count)]]
    for step in range(2 * (count - 1)):
        before = states[-1]
        after = [list(row) for row in before]
        for rank in range(count):
            chunk = passed_chunk(count, rank, step)
            right = (rank + 1) % count
            own = before[right][chunk] if step < count - 1 else ()
            after[right][chunk] = tuple(sorted((*own, *before[rank][chunk])))
        states.append(after)
    return states


def passed_chunk(count: int, rank: int, step: int) -> int:
    """Which chunk a rank passes on in a step of the ring, both rounds counted through from 0."""
    second_round = step >= count - 1
    return (rank + 1 - (step - count + 1) if second_round else rank - step) % count


def most_sent(way: str, count: int) -> float:
    """What the busiest rank sends in an all-reduce, in units of the tensor.

    Args:
        way: "star" (all to rank 0, which sends the sum back) or "ring".
        count: Ranks, 1 or more.
    """
    _check(count)
    if way == "star":
        return float(count - 1)
    if way == "ring":
        return 2 * (count - 1) / count
    raise ValueError(f'way is "star" or "ring"; got {way!r}')


def _check(count: int) -> None:
    if count < 1:
        raise ValueError(f"there are 1 or more ranks; got {count}")
