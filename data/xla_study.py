"""`python data/xla_study.py`: one training step as XLA sees it, in an environment of its own.

The first time it makes `.venv-xla` (about a minute and 7 GB; delete the folder when you are done).
Writes `data/xla_step.csv` and `data/xla_step.hlo.txt`. Linux only.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mpcourse.commands.setup import ROOT, Environment, SetupError, find_environment
from mpcourse.compilation import xla
from mpcourse.devices.recordings import DATA_FOLDER


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environment if need be, run the steps in it, show them, record them."""
    parser = argparse.ArgumentParser(prog=xla.COMMAND, description=__doc__)
    parser.add_argument("--dry", action="store_true", help="run and show; writes nothing")
    dry = parser.parse_args(arguments).dry
    if sys.platform != "linux":
        print(f"torch_xla is built for Linux only; this is {sys.platform}", file=sys.stderr)
        return 1
    environment = _environment()
    try:
        environment.ensure([xla.REQUIREMENTS])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            xla.run_by(environment.python, folder)
            _show(folder)
            if not dry:
                for file in (xla.TABLE, xla.GRAPH):
                    print(shutil.copy(folder / file, DATA_FOLDER / file))
    except (SetupError, RuntimeError, TimeoutError) as error:
        print(f"\nmpcourse: {error}", file=sys.stderr)
        return 1
    print(f"The environment stays in {xla.FOLDER}; delete the folder when you are done.")
    return 0


def _environment() -> Environment:
    """The environment of torch_xla beside that of the course; nothing is made."""
    course = find_environment()
    folder = ROOT / xla.FOLDER
    return Environment(ROOT, folder, folder / course.python.relative_to(course.folder))


def _show(folder: Path) -> None:
    """Print the steps and what their graph consists of."""
    seen = xla.read_xla_run(folder)
    print(*seen.rows, sep="\n")
    print("matrix products in the graph of the first step:", seen.hlo.count(" dot("))


if __name__ == "__main__":
    sys.exit(main())
