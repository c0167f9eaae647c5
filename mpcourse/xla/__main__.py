"""`python -m mpcourse.xla`: one training step as XLA sees it, in an environment of its own.

The first time it makes `.venv-xla` (about a minute and 7 GB; delete the folder when you are done).
Writes `data/xla_step.csv` and `data/xla_step.hlo.txt`. Linux only.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mpcourse.recordings import DATA_FOLDER
from mpcourse.setup import SetupError
from mpcourse.xla import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environment if need be, run the steps in it, show them, record them.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog=run.COMMAND, description=__doc__)
    parser.add_argument("--dry", action="store_true", help="run and show; writes nothing")
    dry = parser.parse_args(arguments).dry
    if sys.platform != "linux":
        print(f"torch_xla is built for Linux only; this is {sys.platform}", file=sys.stderr)
        return 1
    environment = run.xla_environment()
    try:
        environment.ensure([run.REQUIREMENTS])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run.run_in(environment, folder)
            _show(folder)
            if not dry:
                for file in (run.TABLE, run.GRAPH):
                    print(shutil.copy(folder / file, DATA_FOLDER / file))
    except (SetupError, RuntimeError, TimeoutError) as error:
        print(f"\nmpcourse: {error}", file=sys.stderr)
        return 1
    print(f"The environment stays in {run.FOLDER}; delete the folder when you are done.")
    return 0


def _show(folder: Path) -> None:
    """Print the steps and what their graph consists of."""
    seen = run.read_xla_run(folder)
    print(*seen.rows, sep="\n")
    print(run.count_operations(seen.hlo))


if __name__ == "__main__":
    sys.exit(main())
