"""Execute the pages in fresh kernels and save them in the form that the tests want.

Page: all of them; `python -m mpcourse pages` is for whoever writes one. Source: the documentation
of nbclient and nbformat.
"""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from mpcourse.commands.address import Address, find_address, read_address, write_setting
from mpcourse.commands.arguments import pages_arguments
from mpcourse.commands.clean_copies import (
    CLEAN,
    checks_of,
    clean_copy,
    find_pages,
    folded,
    page_key,
)
from mpcourse.commands.page_format import (
    normalise,
    to_text,
    without_colours,
    write_address,
    write_links,
)
from mpcourse.commands.setup import ROOT
from mpcourse.commands.shell import write_whole
from mpcourse.exercises import PAGES

NOTEBOOKS = ROOT / "notebooks"
CELL_TIMEOUT_S = 300
CALL = re.compile(r"\b(check_\w+)\(")
WRITTEN = re.compile(r"<details><summary>A solution</summary>\n\n.*?\n\n</details>", re.DOTALL)


def read(path: Path) -> NotebookNode:
    """Read a notebook of format 4 as it is: nothing is repaired, so that a check sees it all."""
    return nbformat.v4.reads(path.read_text(encoding="utf-8"))


def save(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook in one step: whoever looks finds the old file or the new one, whole."""
    nbformat.validate(notebook)
    write_whole(path, to_text(notebook))


def renew(path: Path, address: Address, *, run: bool) -> None:
    """Bring badges, first cell, links and solutions of a page up to date, run it, and save it.

    The stored page and its clean copy are replaced only when every cell ran. Raises ValueError when
    the page has no title to put the badges under, or a check of no exercise.
    """
    notebook = read(path)
    write_address(notebook, address, page_name=path.name)
    write_links(notebook, page_name=path.name, pages=[page.name for page in find_pages([])])
    write_solutions(notebook, page_key(path.name))
    if run:
        own = KernelSpecManager(kernel_dirs=[])  # this Python, whatever kernels are installed
        nbclient.execute(
            notebook,
            cwd=str(path.resolve().parent),
            km=AsyncKernelManager(kernel_spec_manager=own),
            timeout=CELL_TIMEOUT_S,
            record_timing=False,
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],  # without the kernel's notes on its own sockets
        )
    notebook = normalise(notebook)
    save(notebook, path)
    if path.resolve().parent == NOTEBOOKS:
        (ROOT / CLEAN).mkdir(exist_ok=True)
        write_whole(ROOT / CLEAN / path.name, clean_copy(to_text(notebook)))


def write_solutions(notebook: NotebookNode, page: str) -> None:
    """Put a folded solution behind the hint of each exercise that the page does not go on with.

    Args:
        notebook: The page; texts below its check cells change.
        page: Its name, as in "pipeline".
    """
    for check, text, following in checks_of(notebook.cells):
        if following and following[0].metadata.get("jupyter"):
            continue  # a folded cell is one
        name = CALL.search(check.source)[1]
        if name not in PAGES.get(page, {}):
            raise ValueError(f"{name} is not in mpcourse/exercises/{page}.py")
        words, code = PAGES[page][name].solution_text()
        solution = folded(f"{words}\n\n```python\n{code}\n```", "A solution")
        hint, end, rest = WRITTEN.sub("", text.source).partition("</details>")
        above, below = (hint + end, rest) if end else ("", hint)
        parts = ["\n".join(filter(None, [above.strip(), solution])), below.strip()]
        text.source = "\n\n".join(filter(None, parts))


def execute(path: Path, address: Address) -> int:
    """Run one page in a fresh kernel and save it; return 1, and leave it, where that failed."""
    print(path.name, end=": ", flush=True)
    start = time.perf_counter()
    try:
        renew(path, address, run=True)
    except (CellExecutionError, CellTimeoutError, DeadKernelError, ValueError) as error:
        print(f"\n{path.name}: {without_colours(str(error))}", file=sys.stderr)
        print(f"{path.name} is as it was.", file=sys.stderr)
        return 1
    print(f"{time.perf_counter() - start:.0f} s", flush=True)
    return 0


def main(argv: Sequence[str]) -> int:
    """Run `python -m mpcourse pages ...`; return its status.

    0: all well, 1: a page failed, 2: there is no such page, or no such address.
    """
    asked = pages_arguments().parse_args(argv)
    try:
        paths = find_pages(asked.pages if asked.address is None else [])
        address = read_address() if asked.address is None else find_address(asked.address)
        if asked.address is None and not asked.stored:
            return max((execute(path, address) for path in paths), default=0)
        write_setting(address)
        for path in paths:
            renew(path, address, run=False)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    where = f"{address.repository}, branch {address.branch}"
    print(f"{len(paths)} pages, their clean copies, README and setting lead to {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
