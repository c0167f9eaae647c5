"""Long studies and runs on machines you may not have, kept as CSV files in `data/`.

The lines that begin with `#` say how a file came about; below them is an ordinary CSV table.
"""

import csv
import datetime
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mpcourse.devices.timing import describe_machine

DATA_FOLDER = Path(__file__).resolve().parents[2] / "data"


class Recording(NamedTuple):
    """A table (column -> value for each row) and where it comes from ("command", "date", …)."""

    about: dict[str, str]
    rows: list[dict[str, str | float]]


def write_recording(
    name: str,
    rows: Sequence[Mapping[str, object]],
    *,
    command: str,
    device: str,
    folder: Path = DATA_FOLDER,
) -> Path:
    """Write `folder/name`, with the machine, torch's version and today's date.

    `command` makes this file again, as typed in a shell; `device` is what computed, in words. All
    rows have the same columns.
    """
    columns = list(rows[0]) if rows else []
    if not columns or any(list(row) != columns for row in rows):
        raise ValueError(f"all rows need the columns of the first, at least one; got {columns}")
    about = {
        "command": command,
        "device": device,
        "machine": describe_machine(),
        "date": datetime.date.today().isoformat(),
    }
    text = io.StringIO()
    text.writelines(f"# {key}: {value}\n" for key, value in about.items())
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    path = folder / name
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def read_recording(name: str, folder: Path = DATA_FOLDER) -> Recording:
    """Read what `write_recording` wrote.

    Raises:
        FileNotFoundError: There is no such file; the message names those that there are.
    """
    path = folder / name
    if not path.is_file():
        there = ", ".join(sorted(file.name for file in folder.glob("*.csv"))) or "none"
        raise FileNotFoundError(f"there is no recording {name}; there are: {there}")
    lines = path.read_text(encoding="utf-8").splitlines()
    heads = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    about = dict(head.split(": ", maxsplit=1) for head in heads)
    rows = csv.DictReader(line for line in lines if not line.startswith("# "))
    return Recording(about, [{key: _value(text) for key, text in row.items()} for row in rows])


def values_by(
    rows: Sequence[Mapping[str, object]], *columns: str, of: str
) -> dict[tuple, list[float]]:
    """Group the rows of a recording and collect one number of each, such as that of every seed.

    Args:
        rows: As `read_recording` gives them.
        columns: What the rows of a group have in common.
        of: The column whose numbers are collected.

    Returns:
        Values of `columns` -> numbers of the rows that have them, in the order of the rows.
    """
    found: dict[tuple, list[float]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row[of])
    return found


def gpu_seconds(study: str) -> dict[tuple[int, str], float]:
    """Size, way -> median seconds of one of the studies in `gpu_times.csv`, recorded on a GPU."""
    rows = [row for row in read_recording("gpu_times.csv").rows if row["study"] == study]
    return {(row["size"], row["way"]): row["s"] for row in rows}


def _value(text: str) -> str | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
