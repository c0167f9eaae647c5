"""An order of ours in torch's engine: a line of text per process, `0F0,0F1,0I0,…`.

Page `torch_pipelining`.
"""

import tempfile
from pathlib import Path
from typing import Any

from mpcourse.schedules.actions import Schedule

# torch's engine for any order; all its schedules of several stages per process are built on it.
ANY_ORDER = "_PipelineScheduleRuntime"


def to_lines(schedule: Schedule) -> str:
    """The text that torch reads: a line per process, its actions with commas between them."""
    return "".join(",".join(map(str, actions)) + "\n" for actions in schedule)


def read_order(runner: Any, schedule: Schedule) -> None:
    """Hand an order to torch's engine, which adds all sends and receives by itself.

    Args:
        runner: A `_PipelineScheduleRuntime`; it reads the order from a file.
        schedule: One list of actions per process.
    """
    with tempfile.TemporaryDirectory(prefix="mpcourse-") as folder:
        path = Path(folder) / "order.csv"
        path.write_text(to_lines(schedule), encoding="utf-8")
        runner._load_csv(str(path))
