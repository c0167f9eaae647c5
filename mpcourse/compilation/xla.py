"""What XLA did with a training step: run in the environment `.venv-xla`, or as it was recorded."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from mpcourse.devices.recordings import DATA_FOLDER, read_recording

COMMAND = "python data/xla_study.py"
TABLE, GRAPH = "xla_step.csv", "xla_step.hlo.txt"
REQUIREMENTS = "requirements-xla.txt"
FOLDER = ".venv-xla"
ROOT = DATA_FOLDER.parent
TIME_LIMIT_S = 600


class XlaRun(NamedTuple):
    """Some training steps on XLA."""

    about: dict[str, str]  # command, device, machine, date
    rows: list[dict[str, str | float]]  # a step each: batch, loss, compiles, cache_hits, ...
    hlo: str  # the graph of the first step


def run_by(python: Path, folder: Path) -> None:
    """Run the steps by a Python that has torch_xla; the recording goes into a folder."""
    command = [python, "-m", "mpcourse.compilation.xla_step", folder]
    try:
        subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=TIME_LIMIT_S
        )
    except subprocess.CalledProcessError as error:
        last = "\n".join(error.stderr.splitlines()[-5:])
        mend = f"`{COMMAND}` mends the environment; the recording is data/{TABLE}"
        raise RuntimeError(f"the run in {FOLDER} failed:\n{last}\n{mend}") from None


def read_xla_run(folder: Path = DATA_FOLDER) -> XlaRun:
    """Read what `python data/xla_study.py` has recorded."""
    if not (folder / GRAPH).is_file():
        raise FileNotFoundError(f"there is no recording {GRAPH}: `{COMMAND}` makes it")
    table = read_recording(TABLE, folder)
    lines = (folder / GRAPH).read_text(encoding="utf-8").splitlines()
    hlo = "\n".join(line for line in lines if not line.startswith("# "))
    return XlaRun(table.about, table.rows, hlo)
