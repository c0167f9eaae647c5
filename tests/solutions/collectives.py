"""Solutions: a ring, a deadlock, a line through messages, a tree beside a ring."""

import math

import torch


def my_all_reduce(tensor, rank, count, send, recv):
    """Two rounds of count - 1 steps: add what arrives, then replace by what arrives.

    In step s = 1, 2, … rank r sends chunk r - s + 1, which has arrived in the step before, and gets
    chunk r - s. In the first round it adds what arrives, so a sum grows as it goes round; then it
    has the whole sum of chunk r + 1. The second round hands the whole sums on, and the division
    comes last.
    """
    chunks = tensor.tensor_split(count)  # views: changing a chunk changes the tensor
    for step in range(1, count):
        send(chunks[(rank - step + 1) % count], (rank + 1) % count)
        chunks[(rank - step) % count].add_(recv((rank - 1) % count))
    for step in range(count, 2 * count - 1):
        send(chunks[(rank - step + 1) % count], (rank + 1) % count)
        chunks[(rank - step) % count].copy_(recv((rank - 1) % count))
    return tensor / count


def my_stuck(programs):
    """Let pairs meet for as long as any pair can.

    A send goes on only together with its receive, so both ranks move by one. In which order pairs
    meet does not matter, because no rank ever has a choice. Who is not at the end when nothing
    moves any more waits for ever: for somebody who has ended, or who waits too.
    """
    at = [0] * len(programs)

    def next_of(rank):
        return tuple(programs[rank][at[rank]]) if at[rank] < len(programs[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank in range(len(programs)):
            kind, other = next_of(rank) or ("ended", rank)
            if kind == "send" and next_of(other) == ("recv", rank):
                at[rank] += 1
                at[other] += 1
                moved = True
    return {rank: index for rank, index in enumerate(at) if index < len(programs[rank])}


def my_fit(sizes, seconds):
    """Lay a line through the points: seconds = latency + size / bandwidth.

    Least squares would look at the long messages alone, whose errors are the largest; divided by
    its time, each message counts for the same. The unknowns are the latency and the seconds per
    byte, and the bandwidth is one over the latter.
    """
    seconds = torch.tensor(seconds, dtype=torch.float64)
    columns = torch.stack([torch.ones_like(seconds), torch.tensor(sizes) / 1.0], dim=1)
    wanted = torch.ones_like(seconds)
    latency, per_byte = torch.linalg.lstsq(columns / seconds[:, None], wanted[:, None]).solution
    return latency.item(), 1 / per_byte.item()


def my_seconds(count, nbytes, latency, bandwidth):
    """Rounds times what one message takes.

    The tree has log2(count) rounds up and as many down, each with whole tensors. The ring has
    count - 1 steps in each of its two rounds, and a message is one chunk.
    """
    tree = 2 * math.log2(count) * (latency + nbytes / bandwidth)
    ring = 2 * (count - 1) * (latency + nbytes / count / bandwidth)
    return tree, ring
