"""Solutions: equal to one process, hooks that average, shards of a data set."""

import torch


def my_hooks(module, all_reduce, count):
    """A hook on every parameter that takes part: sum over the ranks, then divide.

    torch calls it with the parameter, right after its gradient has been written into `.grad`. So
    the last layers are averaged while the backward still works on the first.
    """

    def average(parameter):
        all_reduce(parameter.grad)
        parameter.grad /= count

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)


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
