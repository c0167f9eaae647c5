"""Several schedules in one start, since starting the processes takes longest.

Page `torch_pipelining`.
"""

import argparse
from typing import Any

from mpcourse.multiprocess import pipelining
from mpcourse.multiprocess.pipeline_work import add_work_options
from mpcourse.multiprocess.rank import Rank


def add_options(parser: argparse.ArgumentParser) -> None:
    """The work, and the schedules."""
    add_work_options(parser)
    every, default = list(pipelining.SCHEDULES), pipelining.available_schedules()
    parser.add_argument("--schedules", nargs="+", choices=every, default=default)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Train once with each schedule, from the same weights: schedule -> what `pipeline` returns."""
    alike = {**vars(options), "stages_per_rank": None, "checkpoints": None, "quiet": True}
    results = {}
    for name in options.schedules:
        results[name] = pipelining.run(rank, argparse.Namespace(**alike, schedule=name))
        for loss in results[name]["losses"][-1:]:  # where the last stage is
            rank.say(f"{name}: {options.steps} steps, the last loss is {loss:.3f}")
    return results
