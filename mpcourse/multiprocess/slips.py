"""Two uses of torch's engine whose gradients are wrong, mostly without an error.

Page `torch_pipelining`.
"""

import argparse
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import pipelining

from mpcourse.multiprocess.pipeline_work import make_batches, make_net, work_options
from mpcourse.multiprocess.rank import Rank
from mpcourse.multiprocess.torch_stage import PipelineStage

MICROBATCHES = 4
REFUSED = "refused"  # in place of a ratio, where this torch raises
# How long a rank waits for one that was refused. Not under nccl: its limit ends the process, and
# holds for its first connection, too.
NEIGHBOUR = timedelta(seconds=15)
SUM = nn.CrossEntropyLoss(reduction="sum")
Loss = Callable[[Tensor, Tensor], Tensor]


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return, per use and layer of this rank: its gradient over the uncut net's, or None.

    Returns:
        sum: The samples' losses are added up, and the engine is not told so.
        sum, scale_grads=False: It is told.
        cut before layer 1: The backward is split, and the first stage has no parameters. Torch
            loses a gradient, refuses, or is right: that depends on its version.
        cut before layer 2: It has some.
    """
    gpipe, split = pipelining.ScheduleGPipe, pipelining.ScheduleInterleavedZeroBubble
    mean, ranks = nn.CrossEntropyLoss(), rank.world_size
    halves = [3]  # a cut before layer 3: two stages
    if ranks != 2:
        raise ValueError(f"this program takes 2 processes; got {ranks}")
    return {
        "sum": _ratios(rank, halves, SUM, gpipe),
        "sum, scale_grads=False": _ratios(rank, halves, SUM, gpipe, scale_grads=False),
        "cut before layer 1": _ratios_or_refused(rank, [1, 3, 5], mean, split),
        "cut before layer 2": _ratios(rank, [2, 3, 5], mean, split),
    }


def _ratios_or_refused(
    rank: Rank, cuts: list[int], loss_fn: Loss, kind: Callable[..., Any]
) -> dict[str, float | str | None]:
    """Like `_ratios`, in a group of its own: one rank may be refused, and the other wait for it."""
    group = distributed.new_group(timeout=NEIGHBOUR if rank.backend == "gloo" else None)
    try:
        found = _ratios(rank, cuts, loss_fn, kind, group)
    except RuntimeError:
        found = dict.fromkeys(("1", "3", "5"), REFUSED)
    distributed.barrier()  # one may be refused at once, the other after its wait
    return found


def _ratios(
    rank: Rank,
    cuts: list[int],
    loss_fn: Loss,
    kind: Callable[..., Any],
    group: distributed.ProcessGroup | None = None,
    **told: Any,
) -> dict[str, float | None]:
    """One step of the MNIST net, cut before the layers `cuts`: layer -> ratio of the lengths."""
    options = work_options(batch_size=32, steps=1, double=True)
    [(images, targets)] = make_batches(options)
    images, targets = images.to(rank.device), targets.to(rank.device)
    net, uncut = (make_net(options).to(rank.device) for _ in range(2))
    loss_fn(uncut(images), targets).backward()

    bounds = [0, *cuts, len(net)]
    own = range(rank.rank, len(cuts) + 1, rank.world_size)
    parts = {i: net[bounds[i] : bounds[i + 1]] for i in own}
    number = len(cuts) + 1
    stages = [PipelineStage(each, i, number, rank.device, group=group) for i, each in parts.items()]
    one = number == rank.world_size
    runner = kind(stages[0] if one else stages, MICROBATCHES, loss_fn=loss_fn, **told)
    has_last = stages[-1].is_last
    runner.step(*([images] if rank.rank == 0 else []), **({"target": targets} if has_last else {}))
    layers = [str(layer) for i in own for layer in range(bounds[i], bounds[i + 1])]
    return {
        layer: None if net[int(layer)].weight.grad is None else _ratio(net, uncut, int(layer))
        for layer in layers
        if isinstance(net[int(layer)], nn.Linear)
    }


def _ratio(net: nn.Sequential, uncut: nn.Sequential, layer: int) -> float:
    found, right = (torch.linalg.norm(each[layer].weight.grad) for each in (net, uncut))
    return round((found / right).item(), 6)
