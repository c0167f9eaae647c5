"""What torchrun starts: `python -m torch.distributed.run … -m mpcourse.multiprocess PROGRAM …`."""

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
    sys.exit(main(sys.argv[1:]))
