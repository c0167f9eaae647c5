"""A block cut inside its layers over two processes: ours, beside torch's `parallelize_module`."""

import statistics

from mpcourse.benchmark.overheads import Row
from mpcourse.multiprocess.launch import launch

TORCH = "torch's parallelize_module"


def cut_block(width: int, tokens: int, repeats: int) -> list[Row]:
    """A step of one block, uncut and cut both ways in the same two processes, in turns."""
    options = {"width": width, "tokens": tokens, "repeats": repeats}
    results = launch("mpcourse.transformer.in_processes", on_line=None, **options).results
    ratios = paired(results, "torch's")
    return [
        (
            f"a block of width {width}, {tokens} tokens, on two ranks: {name}",
            f"{statistics.median(results[0]['seconds'][name]) * 1e3:.1f} ms a step",
            f"{ratios[name]:.2f} x {TORCH}",
        )
        for name in results[0]["seconds"]
    ]


def paired(results: list[dict], least: str) -> dict[str, float]:
    """Each step's time over that of the one it is held against, turn by turn: the median ratio.

    Args:
        results: Of the ranks; "seconds" are lists by name, one entry per turn. A turn takes as long
            as on its slowest rank.
        least: The name that is 1.
    """
    names = results[0]["seconds"]
    turns = {name: _slowest([found["seconds"][name] for found in results]) for name in names}
    return {
        name: statistics.median(a / b for a, b in zip(turns[name], turns[least], strict=True))
        for name in names
    }


def _slowest(times: list[list[float]]) -> list[float]:
    return [max(turn) for turn in zip(*times, strict=True)]
