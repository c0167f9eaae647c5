"""Averaging gradients while the backward still runs: what DDP does, in small.

Page `distributed_data_parallel`.

Source: Li et al. 2020, arXiv:2006.15704; torch/csrc/distributed/c10d/reducer.cpp.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from mpcourse.multiprocess.shards import GradientHooks, check_no_graph, check_whole
from mpcourse.schedules.actions import check_count

_hooks = GradientHooks()


class BucketedDataParallel(nn.Module):
    """A module on every rank whose gradients are averaged in buckets, beside the backward.

    The backward reaches the last layers first. As soon as all gradients of a bucket are there, its
    all-reduce begins, and the backward goes on beside it. This is what
    `torch.nn.parallel.DistributedDataParallel` does, with two differences: `wait` ends the
    step by hand, and buffers are sent once, at the start, not before every forward.

    Args:
        module: Of the same shape on all ranks, on this rank's device. Rank 0's weights and buffers
            are copied to all others. What is frozen stays so, or the module is wrapped again.
        bucket_bytes: When a bucket is full; DDP takes 25 MiB, and less for the first one.

    Attributes:
        module: The module itself.
        buckets: The parameters of each bucket, of one dtype, in the order in which they are sent.

    Raises:
        RuntimeError: There is no process group.
        ValueError: The module of a rank has other weights or buffers than rank 0's.
    """

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        if not distributed.is_initialized():
            raise RuntimeError("call torch.distributed.init_process_group first")
        parameters = dict(module.named_parameters())
        tensors = {**parameters, **dict(module.named_buffers())}
        check_whole(parameters.values())
        _check_alike(tensors)
        self.module = module
        trained = {p: name for name, p in parameters.items() if p.requires_grad}
        self.buckets = _fill(list(reversed(trained)), bucket_bytes)
        self._names = trained
        self._arrived: set[Tensor] = set()
        self._sent: list[tuple[Tensor, distributed.Work]] = []
        for parameter in trained:
            _hooks.put(parameter, self._on_gradient)
        for tensor in tensors.values():
            sent = tensor.detach().contiguous()
            distributed.broadcast(sent, 0)
            tensor.detach().copy_(sent)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    def _on_gradient(self, parameter: Tensor) -> None:
        if parameter in self._arrived:
            raise RuntimeError("a second backward before wait(): the first one's buckets are lost")
        check_no_graph(parameter.grad)
        parameter.grad = parameter.grad.to_dense()  # an embedding may have sparse ones
        self._arrived.add(parameter)
        # in this order only: the ranks' messages must not meet those of another bucket
        while len(self._sent) < len(self.buckets):
            bucket = self.buckets[len(self._sent)]
            if any(p not in self._arrived or p.grad is None for p in bucket):
                return
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in bucket])
            self._sent.append((flat, distributed.all_reduce(flat, async_op=True)))

    def wait(self) -> None:
        """After each backward: wait for the averages, and put them into `.grad`.

        Raises:
            RuntimeError: A parameter got no gradient, so that its bucket was never sent, or was
                not yet trained when the module was wrapped; the message names it.
        """
        sent, arrived = list(self._sent), set(self._arrived)
        self._sent.clear()  # also when the next line raises: the next step begins anew
        self._arrived.clear()
        trained = {p: name for name, p in self.module.named_parameters() if p.requires_grad}
        if new := [name for p, name in trained.items() if p not in self._names]:
            raise RuntimeError(f"{', '.join(new)} was not trained before: wrap the module again")
        lacking = [n for p, n in self._names.items() if p not in arrived or p.grad is None]
        if lacking:
            raise RuntimeError(f"no gradient for {', '.join(lacking)}: their buckets are not sent")
        for bucket, (flat, request) in zip(self.buckets, sent, strict=True):
            request.wait()
            flat /= distributed.get_world_size()
            pieces = flat.split([parameter.numel() for parameter in bucket])
            for parameter, piece in zip(bucket, pieces, strict=True):
                parameter.grad.copy_(piece.view_as(parameter.grad))


def _check_alike(tensors: Mapping[str, Tensor]) -> None:
    mine = {name: (tuple(t.shape), t.dtype, t.requires_grad) for name, t in tensors.items()}
    all_ranks: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(all_ranks, list(mine.items()))
    for rank, theirs in enumerate(all_ranks):
        for ours, other in itertools.zip_longest(all_ranks[0], theirs):
            if ours != other:
                raise ValueError(f"rank 0 has {ours}, where rank {rank} has {other}")


def _fill(parameters: Sequence[Tensor], bucket_bytes: int) -> list[list[Tensor]]:
    check_count("bucket_bytes", bucket_bytes)
    buckets: list[list[Tensor]] = []
    room = 0
    for parameter in parameters:
        is_like = bool(buckets) and parameter.dtype == buckets[-1][-1].dtype
        if not is_like or parameter.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(parameter)
        room -= parameter.nbytes
    return buckets
