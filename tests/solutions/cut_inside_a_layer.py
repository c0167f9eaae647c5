"""Solutions of page `cut_inside_a_layer`: parts of an MLP, drift, bytes, a cut loss, its slip."""

import torch
from torch import distributed


def my_parts(up_weight, up_bias, down_weight, rank, ranks):
    """A rank owns some inner numbers: what makes them, and what takes them.

    `nn.Linear` stores W as (out, in), so a column of W is a row of `weight`. Up gives its rows and
    their biases, down the columns that belong to the same inner numbers. The bias of down is
    nobody's part: it is added once, after the sum.
    """
    inner = len(up_bias)
    own = slice(rank * inner // ranks, (rank + 1) * inner // ranks)
    return up_weight[own], up_bias[own], down_weight[:, own]


def my_same(tensor, group):
    """All hold the same if the lowest and the highest of each number are the same.

    Both come to all ranks, so all give one answer. A mean would hide differences that cancel, and
    the rank that holds the mean itself would see none. The copies matter: an all-reduce replaces
    what it is given.
    """
    low, high = tensor.clone(), tensor.clone()
    distributed.all_reduce(low, distributed.ReduceOp.MIN, group)
    distributed.all_reduce(high, distributed.ReduceOp.MAX, group)
    return torch.equal(low, high)


def my_block_bytes(tokens, width, itemsize, ranks):
    """Attention and MLP each sum once forward and once backward: four all-reduces.

    Each is of a tensor of the width between the layers, and a ring sends 2 (n - 1) / n of it. With
    one rank that is nothing.
    """
    return 4 * 2 * (ranks - 1) / ranks * tokens * width * itemsize


def my_cut_loss(logits, targets, first, all_max, all_sum):
    """One maximum for all ranks, then two sums: of the exponentials, and of the right score.

    Only one rank has the right token; the others add zero. With its own maximum on each rank the
    exponentials would be in different units, and their sum would mean nothing.
    """
    shifted = logits - all_max(logits.amax(dim=1)).unsqueeze(1)
    row = targets - first
    here = (row >= 0) & (row < logits.shape[1])
    right = shifted.gather(1, row.where(here, 0).unsqueeze(1)).squeeze(1).where(here, 0.0)
    return (all_sum(shifted.exp().sum(dim=1)).log() - all_sum(right)).mean()


def my_scores():
    """The slip needs two different maxima: equal ones hide it.

    In the first list both ranks subtract 2, which is the maximum of all. In the second rank 1
    subtracts 9 where rank 0 subtracts 2. So a test with random scores finds the slip, and one with
    zeros never does.
    """
    return [0.0, 2.0, 2.0, 1.0], [0.0, 2.0, 9.0, 1.0]
