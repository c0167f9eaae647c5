"""Fresh kernels of the running interpreter, and the cells of a notebook run in one.

Behind `python -m mpcourse pages` and `grade`. Source: the documentation of jupyter_client and
nbclient.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from mpcourse.commands.page_format import without_colours

CELL_TIMEOUT_S = 300


class PageError(RuntimeError):
    """A page did not run to its end; the stored page is as it was."""


def own_kernel(manager: type[KernelManager], **settings: Any) -> KernelManager:
    """A manager whose kernel is this interpreter, whatever kernels the user has installed."""
    specs = KernelSpecManager(kernel_dirs=[])  # no folders to look in
    return manager(kernel_name="python3", kernel_spec_manager=specs, **settings)


def run_cells(notebook: NotebookNode, folder: Path, at: Callable[[int], str]) -> None:
    """Run a notebook from top to bottom in `folder`, in place; raise PageError where a cell fails.

    `at` is called before every code cell with its position, from 1, and says where that is.
    """
    client = NotebookClient(
        notebook,
        km=own_kernel(AsyncKernelManager),
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],  # without the kernel's notes on its own sockets
        resources={"metadata": {"path": str(folder)}},
    )
    with client.setup_kernel(cleanup_kc=True):
        for position, cell in enumerate(notebook.cells, start=1):
            if cell.cell_type != "code":
                continue
            where = at(position)
            try:
                client.execute_cell(cell, position - 1)
            except CellExecutionError as error:  # its text starts with the cell; the cause is last
                words = without_colours(f"{error.ename}: {error.evalue}\n{error.traceback}")
                raise PageError(f"{where}: {words}") from error
            except (CellTimeoutError, DeadKernelError) as error:
                raise PageError(f"{where}: {error}") from error
