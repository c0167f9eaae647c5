"""Broadcast and all-reduce out of sends and receives between two ranks.

Page `collectives`.

Each works in place on a contiguous tensor of the same shape on all ranks and returns how many bytes
this rank has sent. All ranks have to call it, in the same order.
"""

import torch
from torch import Tensor, distributed


def broadcast_by_hand(tensor: Tensor) -> int:
    """Give every rank the tensor of rank 0: one message to each other rank."""
    _check(tensor)
    if distributed.get_rank() != 0:
        distributed.recv(tensor, 0)
        return 0
    others = range(1, distributed.get_world_size())
    for rank in others:
        distributed.send(tensor, rank)
    return len(others) * tensor.nbytes


def all_reduce_star(tensor: Tensor) -> int:
    """Add up over all ranks: everybody sends to rank 0, which adds and sends the sum back.

    With n ranks and b bytes, rank 0 receives and sends (n - 1) b; the others wait for it.
    """
    _check(tensor)
    if distributed.get_rank() != 0:
        distributed.send(tensor, 0)
        return tensor.nbytes + broadcast_by_hand(tensor)
    arrived = torch.empty_like(tensor)
    for rank in range(1, distributed.get_world_size()):
        distributed.recv(arrived, rank)
        tensor += arrived
    return broadcast_by_hand(tensor)


def all_reduce_ring(tensor: Tensor) -> int:
    """Add up over all ranks: everybody sends to the right and receives from the left.

    The tensor is cut into n chunks for n ranks. Round one adds: after n - 1 steps each rank has the
    whole sum of one chunk. Round two hands the sums on. Each rank sends 2 (n - 1) / n of the
    tensor's bytes, which is less than twice the tensor for any n.

    Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
    """
    _check(tensor)
    rank, count = distributed.get_rank(), distributed.get_world_size()
    chunks = tensor.view(-1).tensor_split(count)
    sent = 0
    for step in range(count - 1):  # reduce-scatter
        mine, next_one = chunks[(rank - step) % count], chunks[(rank - step - 1) % count]
        next_one += _pass_on(mine, next_one)
        sent += mine.nbytes
    for step in range(count - 1):  # all-gather
        mine, next_one = chunks[(rank + 1 - step) % count], chunks[(rank - step) % count]
        next_one.copy_(_pass_on(mine, next_one))
        sent += mine.nbytes
    return sent


def _pass_on(mine: Tensor, like: Tensor) -> Tensor:
    """Send `mine` to the right and, meanwhile, receive a tensor like `like` from the left."""
    rank, count = distributed.get_rank(), distributed.get_world_size()
    arrived = torch.empty_like(like)
    messages = [
        distributed.P2POp(distributed.isend, mine, (rank + 1) % count),
        distributed.P2POp(distributed.irecv, arrived, (rank - 1) % count),
    ]
    # a tensor with fewer numbers than ranks has empty chunks: nothing to send
    messages = [message for message in messages if message.tensor.numel()]
    for request in distributed.batch_isend_irecv(messages) if messages else []:
        request.wait()
    return arrived


def _check(tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError("messages are sent from contiguous memory: pass tensor.contiguous()")
    if tensor.requires_grad:
        raise ValueError("autograd does not see messages: pass tensor.detach()")
