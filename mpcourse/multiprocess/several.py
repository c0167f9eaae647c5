"""Several programs one after the other in the same processes: their start is paid for once.

For example `launch("several", programs=["overlap", "speed --repeats 5"])` (pages
`distributed_data_parallel` and `torch_pipelining`).
"""

import argparse
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mpcourse.multiprocess.programs import parse
from mpcourse.multiprocess.rank import Rank
from mpcourse.multiprocess.torchrun import option_words


class Line(NamedTuple):
    """A command line that has been read.

    Attributes:
        words: As it was written.
        run: The program.
        options: Its own.
    """

    words: str
    run: Callable[[Rank, argparse.Namespace], dict[str, Any]]
    options: argparse.Namespace

    @classmethod
    def read(cls, words: str) -> "Line":
        """Read it before anything is started; what is wrong comes out of the launcher."""
        try:
            return cls(words, *parse(shlex.split(words)))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error


def line(program: str, **options: Any) -> str:
    """A command line: `line("gradients", repeats=2)` is "gradients --repeats 2"."""
    return shlex.join([program, *option_words(options)])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The programs: names, or command lines with options; `--timeout` holds for all together."""
    words = "names or command lines"
    parser.add_argument("--programs", type=Line.read, nargs="+", default=[], help=words)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return what each program returns, by its name or command line as it was written."""
    if not options.programs:
        raise ValueError("--programs takes one program or more; got none")
    results = {}
    for words, run_one, own in options.programs:
        torch.manual_seed(own.seed)
        results[words] = run_one(rank, own)
    return results
