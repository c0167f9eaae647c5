"""What pytest needs for the notebooks and the unit tests alike.

It stands here because pytest asks only the conftest files above a test, and the cells of a notebook
are tests in `notebooks/`. That it stands here also puts this folder on pytest's own import path.
"""

import os
import platform
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest import mock

# Threads of torch that wait for work keep a core busy, which another process may need: with more
# processes than cores that takes most of the time. Read when torch is loaded; kernels inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import nbval.kernel
import pytest
import torch

# A kernel is a new process, started in notebooks/: this is how it finds the package.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)


def pytest_configure() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, as in a terminal: the tests of interrupts send it.

    A shell starts what it puts into the background with that signal ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


START_KERNEL = nbval.kernel.start_new_kernel


def start_kernel(**options: Any) -> Any:
    """Start a page's kernel, and again if it died: a test beside it may have taken a port.

    The ports are chosen here, and bound by the kernel a second later.
    """
    for _ in range(2):
        try:
            return START_KERNEL(**options)
        except RuntimeError:
            continue
    return START_KERNEL(**options)


nbval.kernel.start_new_kernel = start_kernel


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Let the kernel of a page, which starts here, repeat what it measures twice, not 49 times.

    Unit tests and `python -m mpcourse pages` repeat as often as they are told.
    """
    if item.path.suffix != ".ipynb":
        return (yield)
    with mock.patch.dict(os.environ, {"MPCOURSE_REPEATS": "2"}):
        return (yield)


def pytest_report_header() -> str:
    """Say on what machine the tests ran."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count()
    return (
        f"mpcourse: torch {torch.__version__}, CUDA GPUs: {torch.cuda.device_count()}, "
        f"cores: {cores}, Python {platform.python_version()}"
    )


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let nbval compare all outputs but stderr, where some machines print notes of their own.

    That no page stores any is checked by tests/test_notebooks.py.
    """
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
