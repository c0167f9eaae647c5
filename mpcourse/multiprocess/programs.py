"""The programs that torchrun starts, by name, and their options."""

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mpcourse.multiprocess.faults import Fault
from mpcourse.multiprocess.rank import Rank

# Name -> its module, which has add_options(parser) and run(rank, options) -> dict.
# Programs of other folders go by the full name of their module.
PROGRAMS = {
    "hello": "hello",
    "all-reduce": "all_reduce",
    "gradients": "gradients",
    "overlap": "overlapped",
    "speed": "speed",
    "ddp": "ddp",
    "pipeline": "pipelining",
    "pipelines": "pipelines",
    "zero": "zero",
    "several": "several",
}


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{self.prog}: {message}")


def parse(words: Sequence[str]) -> tuple[Callable[[Rank, argparse.Namespace], dict], Any]:
    """Read a command line: the program's `run`, and its options.

    Raises:
        ValueError: There is no such program or option.
    """
    name, *rest = [*words] or [""]
    module = importlib.import_module(_module_of(name))
    parser = _Parser(prog=name, description=module.__doc__, allow_abbrev=False)
    parser.add_argument("--timeout", type=float, default=60.0, help="of a collective, in seconds")
    parser.add_argument("--fault", type=Fault.parse, help="HOW:RANK:WHERE[:STEP], to be planted")
    parser.add_argument("--seed", type=int, default=0)
    module.add_options(parser)
    return module.run, parser.parse_args(rest)


def _module_of(name: str) -> str:
    if name in PROGRAMS:
        return f"mpcourse.multiprocess.{PROGRAMS[name]}"
    if name.startswith("mpcourse.") and importlib.util.find_spec(name):
        return name
    raise ValueError(f"a program is one of {', '.join(PROGRAMS)}; got {name!r}")
