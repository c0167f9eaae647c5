"""Plain Python in several processes: one at a time, then all at once.

Page `distributed_data_parallel`.
"""

import argparse
import os
import statistics
import time
from typing import Any

from torch import distributed

from mpcourse.devices.jobs import python_job
from mpcourse.multiprocess.rank import Rank

heard: list[int] = []  # one name; each process has a list of its own behind it


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much, how often."""
    parser.add_argument("--count", type=int, default=1_000_000, help="numbers that are added up")
    parser.add_argument("--repeats", type=int, default=5)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return this process's number, what its list holds, and the seconds of its job.

    Returns:
        process, heard, alone (the others wait), together (all are at it); medians.
    """
    heard.append(rank.rank)
    alone, together = [], []
    for _ in range(options.repeats):
        for turn in range(rank.world_size):
            distributed.barrier()
            if turn == rank.rank:
                alone.append(_seconds(options.count))
        distributed.barrier()
        together.append(_seconds(options.count))
    return {
        "process": os.getpid(),
        "heard": list(heard),
        "alone": statistics.median(alone),
        "together": statistics.median(together),
    }


def _seconds(count: int) -> float:
    start = time.perf_counter()
    python_job(count)
    return time.perf_counter() - start
