"""Measure everything on the machine at hand and print a table: `python -m mpcourse.benchmark`.

Figures are ratios or medians of interleaved repeats. Nothing here asserts a time: a busy machine
gives worse figures, not an error.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from mpcourse.benchmark.overheads import engine_cost, hand_over, overlap
from mpcourse.benchmark.resnet50 import compare
from mpcourse.benchmark.two_ranks import Row
from mpcourse.devices.devices import describe_devices, get_devices
from mpcourse.devices.timing import describe_machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; `--short` takes half a minute, without it some minutes."""
    parser = argparse.ArgumentParser(prog="python -m mpcourse.benchmark", description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="smaller images and nets, one size, fewer turns"
    )
    short = parser.parse_args(arguments).short
    devices = get_devices(2)
    print(f"measured here: {describe_machine()}\n{describe_devices(devices)}", flush=True)
    engine = (5, 3) if short else (20, 9)  # steps in a turn, turns
    batch, image, sizes, turns = (4, 32, [2], 2) if short else (32, 128, [16, 8, 4], 5)
    parts: list[Callable[[], list[Row]]] = [
        lambda: [overlap(devices)],
        lambda: [hand_over(devices[0])],
        lambda: engine_cost(*engine),
        *(lambda size=size: compare(devices, batch, image, size, turns) for size in sizes),
    ]
    for part in parts:
        print(flush=True)
        for what, figure, against in part():
            print(f"{what:<62} {figure:<44} {against}".rstrip(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
