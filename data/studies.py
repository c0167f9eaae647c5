"""What the makers of recordings share: the seeds, a command line, a file written at the end."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from mpcourse.capstone.trials import Digits
from mpcourse.devices import describe_devices, get_devices
from mpcourse.devices.recordings import write_recording
from mpcourse.training.in_memory import Data

SEEDS = range(5)
Row = dict[str, Any]


def judged(digits: Digits, model: nn.Module) -> Row:
    """The accuracy on held-out digits, by which a rate can be chosen, and on test images."""
    return {"held_out": digits.accuracy(model), "accuracy": digits.test_accuracy(model)}


def run_studies(
    studies: Mapping[str, Callable[[Data, int, Any], list[Row]]],
    budgets: tuple[Any, Any],
    *,
    command: str,
    about: str,
    arguments: Sequence[str] | None,
    seeds: Sequence[int] = SEEDS,
) -> int:
    """The command line of a study: run all seeds, print each row, write the recordings."""
    options = _options(studies, command, about, arguments)
    dry = options.dry
    [device] = get_devices(1)
    data = Data(device.device)
    for name in [options.only] if options.only else studies:
        rows: list[Row] = []
        for seed in seeds[:1] if dry else seeds:
            # in its worker, which has one thread: more only wait for one another in a net so small
            found = device.run(studies[name], data, seed, budgets[dry])
            print(*found, sep="\n", flush=True)
            rows += found
        if not dry:
            print(write_recording(name, rows, command=command, device=describe_devices([device])))
    return 0


def _options(
    studies: Iterable[str], command: str, about: str, arguments: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=command, description=about)
    little = "one seed, little training; writes nothing"
    parser.add_argument("--dry", action="store_true", help=little)
    parser.add_argument("--only", choices=list(studies), help="make this recording alone")
    return parser.parse_args(arguments)
