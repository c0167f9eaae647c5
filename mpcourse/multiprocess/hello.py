"""The smallest program: every rank says who it is, and all add up their ranks."""

import argparse
import os
from typing import Any

import torch
from torch import distributed

from mpcourse.multiprocess.rank import Rank


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return the process, its place and the sum of all ranks."""
    total = torch.tensor(float(rank.rank), device=rank.device)
    rank.at("all-reduce", 0)
    distributed.all_reduce(total)
    rank.say(f"one of {rank.world_size}, on {rank.device.type} with {rank.backend}")
    return {
        "rank": rank.rank,
        "world_size": rank.world_size,
        "backend": rank.backend,
        "process": os.getpid(),
        "threads": torch.get_num_threads(),
        "sum": total.item(),
    }
