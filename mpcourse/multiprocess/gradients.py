"""The gradients of one mini-batch over several processes, five ways, against one process."""

import argparse
import copy
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mpcourse.multiprocess.buckets import BucketedGradients
from mpcourse.multiprocess.collectives import (
    all_reduce_ring,
    all_reduce_star,
    broadcast_by_hand,
)
from mpcourse.multiprocess.ddp import LOSS, digest
from mpcourse.multiprocess.rank import Rank
from mpcourse.training.nets import conv_net

Step = Callable[[Tensor, Tensor], Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much each rank gets."""
    parser.add_argument("--batch-size", type=int, default=8, help="samples of each rank")
    parser.add_argument("--bucket-bytes", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return, per way, the largest difference to one process's gradients, and the seconds.

    `missing` says how many gradients were still to come when each bucket was sent, `digests` what
    this rank's weights were before the broadcast and after it.
    """
    whole = torch.randn(rank.world_size * options.batch_size, 1, 28, 28).to(rank.device)
    targets = (torch.arange(len(whole)) % 10).to(rank.device)
    mine = slice(rank.rank * options.batch_size, (rank.rank + 1) * options.batch_size)

    torch.manual_seed(rank.rank)  # on purpose: it is the broadcast that makes the nets the same
    net = conv_net().to(rank.device)
    digests = [digest(net)]
    for parameter in net.parameters():
        broadcast_by_hand(parameter.data)
    digests.append(digest(net))
    alone = copy.deepcopy(net)
    LOSS(alone(whole), targets).backward()
    wanted = [parameter.grad for parameter in alone.parameters()]

    differences, seconds = {}, {}
    bucketed = BucketedGradients(hooked := copy.deepcopy(net), options.bucket_bytes)
    ways = {
        "star": (net, lambda: average(net, all_reduce_star)),
        "ring": (net, lambda: average(net, all_reduce_ring)),
        "torch": (net, lambda: average(net, distributed.all_reduce)),
        "buckets": (hooked, bucketed.wait),
        "ddp": (DistributedDataParallel(copy.deepcopy(net)), lambda: None),
    }
    for way, (model, finish) in ways.items():
        times = []
        for _ in range(options.repeats):
            bucketed.begin()
            model.zero_grad()
            distributed.barrier()
            start = rank.seconds()
            rank.at("forward")
            loss = LOSS(model(whole[mine]), targets[mine])
            rank.at("backward")
            loss.backward()
            rank.at("all-reduce")
            finish()
            times.append(rank.seconds() - start)
        found = [parameter.grad for parameter in model.parameters()]
        differences[way] = max(
            (a - b).abs().max().item() for a, b in zip(found, wanted, strict=True)
        )
        seconds[way] = statistics.median(times)
        if way == "buckets":
            missing = bucketed.missing
    return {
        "differences": differences,
        "largest": max(gradient.abs().max().item() for gradient in wanted),
        "seconds": seconds,
        "missing": missing,
        "digests": digests,
    }


def average(model: nn.Module, all_reduce: Callable[[Tensor], Any]) -> None:
    """Replace each gradient by its average over all ranks, one all-reduce per parameter."""
    for parameter in model.parameters():
        all_reduce(parameter.grad)
        parameter.grad /= distributed.get_world_size()
