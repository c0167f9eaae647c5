"""Solutions: a ring, a deadlock, shards of a data set, equal to one process."""

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


def my_shard(samples, rank, count, epoch):
    """Every rank shuffles all samples in the same order and takes every count-th.

    The order comes from the epoch's number alone: with the rank in it, each rank would shuffle in
    an order of its own, and samples would be lost and doubled. A generator of its own leaves
    torch's alone. A stride needs no division, so no remainder is lost.
    """
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(samples, generator=generator)[rank::count].tolist()


def my_local_loss(losses, total, count):
    """Divide by the samples of all ranks, and undo DDP's division by the ranks.

    The gradient of one process is the sum over all samples divided by total. DDP averages, so it
    divides the sum over the ranks by count, which has to be multiplied back in. For equal shards
    this is the mean of the rank's losses.
    """
    return losses.sum() * count / total
