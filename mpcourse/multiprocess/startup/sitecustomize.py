"""Read by each Python of a page's program line as it starts: gloo's threads end before it does.

A thread of gloo that drops the last reference to a tensor asks for Python's lock. If the
interpreter is being taken down by then, the process is aborted, though all its work is done
(pytorch/pytorch issue 190489). `destroy_process_group` waits for these threads only if nothing
else holds the group, as a device mesh and `DistributedDataParallel` do.
"""

import atexit
import importlib.util
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path

PAUSE_S = 0.1


def _let_threads_end() -> None:
    if "torch.distributed" in sys.modules:
        time.sleep(PAUSE_S)  # it gives the lock away


def _read_the_one_behind_this() -> None:
    here = Path(__file__).parent
    spec = PathFinder.find_spec(__name__, [path for path in sys.path if Path(path) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


atexit.register(_let_threads_end)  # what is registered first runs last
_read_the_one_behind_this()
