"""What torchrun starts: `python -m torch.distributed.run … -m mpcourse.multiprocess PROGRAM …`."""

import os
import sys

import torch

from mpcourse.multiprocess.programs import parse
from mpcourse.multiprocess.rank import Rank


def main(words: list[str]) -> int:
    """Run one rank of a program; an exception is reported and ends the process with code 1."""
    try:
        run, options = parse(words)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    rank = Rank(options.timeout, options.fault)
    try:
        rank.connect()
        torch.manual_seed(options.seed)
        rank.returns(run(rank, options))
        rank.close()
    except Exception as error:
        rank.failed(error)
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: all is said and saved, and threads of torch's may still be at work. When one of them
    # wants the interpreter while it leaves, the process aborts, and a finished run has failed.
    os._exit(code)
