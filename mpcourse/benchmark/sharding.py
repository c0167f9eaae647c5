"""Training steps whose state or parameters are shared out over two ranks: ours beside torch's."""

from mpcourse.benchmark.overheads import Row
from mpcourse.multiprocess.launch import launch
from mpcourse.multiprocess.zero import PAIRS

WIDTH = 1024
NAMES = {
    "state": "sharded optimizer",
    "torch's state": "ZeroRedundancyOptimizer",
    "parameters": "fully sharded",
    "torch's parameters": "fully_shard",
}


def sharding(layers: int, steps: int) -> list[Row]:
    """Time the ways of one program in turns; what a step takes is that of the slower rank.

    Args:
        layers: About a million parameters each.
        steps: How many, of which the middle one counts.
    """
    found = launch("zero", width=WIDTH, layers=layers, steps=steps, on_line=None).results
    count = layers * (WIDTH + 1) * WIDTH / 1e6
    rows = []
    for pair in PAIRS:
        kinds = {"step_seconds": "optimizer's step", "seconds": "whole step"}
        if pair[0] == "parameters":  # their optimizer has nothing of its own
            del kinds["step_seconds"]
        for kind, what in kinds.items():
            ours, theirs = (max(result[kind][way] for result in found) for way in pair)
            label = f"two ranks, {count:.0f} M parameters: {NAMES[pair[0]]}, {what}"
            against = f"{ours / theirs:.2f} x {NAMES[pair[1]]}"
            rows.append((label, f"{ours * 1e3:.0f} ms", against))
    return rows
