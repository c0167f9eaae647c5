"""Megatron's f and g: into and out of a layer cut over ranks, each the other's backward.

Where a whole tensor goes into a cut layer (f), its gradient is a sum over the ranks; where the
ranks' parts of a sum come out of it (g), the gradient of each is that of the sum. Each backward
applies the other Function, so that autograd can differentiate it again. Sources: Shoeybi et al.
2019, arXiv:1909.08053; the pair for cut tokens, Korthikanti et al. 2022, arXiv:2205.05198.
"""

from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd import Function
from torch.distributed import ProcessGroup

TOKENS = -2  # the dimension of (..., T, width) that is cut between the cut layers


def copy_to_ranks(
    x: Tensor, group: ProcessGroup | None = None, *, sequence: bool = False
) -> Tensor:
    """f: the input (..., T, width) of a cut layer, on all ranks; an all-reduce backward.

    With `sequence` each rank brings T / n tokens: an all-gather, and a reduce-scatter backward.
    """
    return (_AllGather if sequence else _Identity).apply(x, group)


def reduce_from_ranks(
    x: Tensor, group: ProcessGroup | None = None, *, sequence: bool = False
) -> Tensor:
    """g: the sum of what the ranks' parts of a cut layer give, by an all-reduce.

    With `sequence` each rank gets the sum of its T / n tokens: a reduce-scatter, and an all-gather
    backward. Tokens that the ranks do not divide are refused.
    """
    return (_ReduceScatter if sequence else _AllReduce).apply(x, group)


class _Identity(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _AllReduce.apply(gradient, ctx.group), None


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Identity.apply(gradient, ctx.group), None


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _ReduceScatter.apply(gradient, ctx.group), None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _AllGather.apply(gradient, ctx.group), None


def rank_of(group: ProcessGroup | None) -> int:
    """This rank's place in the group."""
    return distributed.get_rank() if group is None else group.rank()


def size_of(group: ProcessGroup | None) -> int:
    """How many ranks the group has."""
    return distributed.get_world_size() if group is None else group.size()


def sum_in_one_message(tensors: list[Tensor], group: ProcessGroup | None = None) -> None:
    """Replace each tensor by its sum over the ranks."""
    if size_of(group) == 1 or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    distributed.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def _all_reduce(x: Tensor, group: ProcessGroup | None) -> Tensor:
    if size_of(group) == 1:
        return x.view_as(x)
    total = x.clone(memory_format=torch.contiguous_format)  # the sum replaces what it is called on
    distributed.all_reduce(total, group=group)
    return total


def _all_gather(x: Tensor, group: ProcessGroup | None) -> Tensor:
    """Join the ranks' tokens; messages join along the first dimension."""
    if size_of(group) == 1:
        return x.view_as(x)
    part = x.movedim(TOKENS, 0).contiguous()
    whole = part.new_empty(size_of(group) * len(part), *part.shape[1:])
    distributed.all_gather_into_tensor(whole, part, group=group)
    return whole.movedim(0, TOKENS).contiguous()  # else each layer that takes it keeps a copy


def _reduce_scatter(x: Tensor, group: ProcessGroup | None) -> Tensor:
    ranks = size_of(group)
    if x.shape[TOKENS] % ranks:
        raise ValueError(
            f"{ranks} ranks do not divide {x.shape[TOKENS]} tokens: each takes the same number"
        )
    if ranks == 1:
        return x.view_as(x)
    whole = x.movedim(TOKENS, 0).contiguous()
    part = whole.new_empty(len(whole) // ranks, *whole.shape[1:])
    distributed.reduce_scatter_tensor(part, whole, group=group)
    return part.movedim(0, TOKENS)
