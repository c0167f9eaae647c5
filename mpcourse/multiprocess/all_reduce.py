"""Star, ring and torch's own all-reduce: the same sum, other bytes, other times."""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed

from mpcourse.multiprocess.collectives import all_reduce_ring, all_reduce_star
from mpcourse.multiprocess.rank import Rank

WAYS: dict[str, Callable[[Tensor], Any]] = {
    "star": all_reduce_star,
    "ring": all_reduce_ring,
    "torch": distributed.all_reduce,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much, how often."""
    parser.add_argument("--numbers", type=int, nargs="+", default=[1000], help="of each tensor")
    parser.add_argument("--repeats", type=int, default=5)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return, per way and size: the bytes this rank has sent, the largest error, the seconds."""
    rows = []
    for number in options.numbers:
        mine = torch.linspace(0, 1, number, device=rank.device) * (rank.rank + 1)
        count = rank.world_size
        wanted = torch.linspace(0, 1, number, device=rank.device) * (count * (count + 1) / 2)
        for way, all_reduce in WAYS.items():
            rank.at("all-reduce")
            times = []
            for _ in range(options.repeats):
                total = mine.clone()
                distributed.barrier()
                start = rank.seconds()
                sent = all_reduce(total)
                times.append(rank.seconds() - start)
            rows.append(
                {
                    "way": way,
                    "bytes": total.nbytes,
                    "sent": sent,
                    "error": (total - wanted).abs().max().item() if number else 0.0,
                    "seconds": statistics.median(times),
                }
            )
    return {"rows": rows}
