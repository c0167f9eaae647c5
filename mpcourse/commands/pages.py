"""Execute the pages in fresh kernels and save them in the form that the tests want.

Page: all of them; `python -m mpcourse pages` is for whoever writes one.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from mpcourse.commands.address import public_origin, write_setting
from mpcourse.commands.arguments import pages_arguments
from mpcourse.commands.kernels import PageError, run_cells
from mpcourse.commands.page_format import (
    normalise,
    page_key,
    read_repository,
    to_text,
    write_address,
    write_links,
)
from mpcourse.commands.page_sizes import table
from mpcourse.commands.setup import ROOT
from mpcourse.commands.shell import write_whole
from mpcourse.commands.solutions import write_solutions

NOTEBOOKS = ROOT / "notebooks"


def execute(path: Path, show: Callable[[str], None]) -> list[str]:
    """Run one page in a fresh kernel in its folder and save it; a line for each cell with stderr.

    The stored page is replaced in one step, and only when every cell ran. `show` gets a line of
    progress before every code cell. Raises PageError when a cell failed, took too long or lost its
    kernel, ValueError when the page has no title to put the badges under.
    """
    notebook = read(path)
    write_address(notebook, read_repository(), page_name=path.name)
    write_links(notebook, page_name=path.name, pages=[page.name for page in find_pages([])])
    write_solutions(notebook, page_key(path.name))
    notebook = normalise(notebook)
    start = time.perf_counter()

    def at(position: int) -> str:
        where = f"{path.name}, cell {position} of {len(notebook.cells)}"
        show(f"{where}, {time.perf_counter() - start:.0f} s so far")
        return where

    run_cells(notebook, path.resolve().parent, at)
    notebook = normalise(notebook)
    save(notebook, path)
    return [
        f"{path.name}, cell {position}: stderr: {output.text.strip()}"
        for position, cell in enumerate(notebook.cells, start=1)
        for output in cell.get("outputs", [])
        if output.get("name") == "stderr"
    ]


def read(path: Path) -> NotebookNode:
    """Read a notebook of format 4 as it is: nothing is repaired, so that a check sees it all."""
    return nbformat.v4.reads(path.read_text(encoding="utf-8"))


def save(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook in one step: whoever looks finds the old file or the new one, whole."""
    nbformat.validate(notebook)
    write_whole(path, to_text(notebook))


def find_pages(names: Sequence[str], *, folder: Path = NOTEBOOKS) -> list[Path]:
    """Pages by name ("pipeline"), number ("07" or "7") or path, in this order; no names: all."""
    pages = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    return [_find_page(name, pages) for name in names] if names else pages


def _find_page(name: str, pages: Sequence[Path]) -> Path:
    if name.endswith(".ipynb") and Path(name).is_file():
        return Path(name)
    for page in pages:
        if name in (page_key(page.name), page.stem, page.name) or name.zfill(2) == page.name[:2]:
            return page
    raise ValueError(f"no page {name!r}; there are: {', '.join(p.stem for p in pages) or 'none'}")


def check(paths: Sequence[Path]) -> int:
    """Test stored pages against `tests/page_rules.py` without running them, and print their sizes.

    Returns pytest's exit status, 0 when every rule holds; sizes fail nothing.
    """
    which = " or ".join(path.stem for path in paths)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "tests/test_notebooks.py"]
    command += ["-k", f"keeps_the_rule and ({which})"]
    status = subprocess.run(command, cwd=ROOT).returncode
    print(table((path.stem, read(path)) for path in paths))
    return status


def readdress(paths: Sequence[Path], address: str, *, root: Path = ROOT) -> None:
    """Write another public address into setting and README, and into badges and first cells.

    Nothing is run: outputs stay as they are. Raises ValueError, with nothing changed, when the
    address is not of the form "https://github.com/OWNER/NAME".
    """
    notebooks = {path: read(path) for path in paths}
    for path, notebook in notebooks.items():
        write_address(notebook, address, page_name=path.name)
    write_setting(address, root)
    for path, notebook in notebooks.items():
        save(notebook, path)


def _execute_and_report(path: Path) -> int:
    start = time.perf_counter()
    try:
        defects = execute(path, _show_progress)
    except (PageError, ValueError) as error:
        print(f"\n{error}\n{path.name} is as it was.", file=sys.stderr)
        return 1
    _show_progress(f"{path.name}: saved, {time.perf_counter() - start:.0f} s")
    print("", *defects, sep="\n", file=sys.stderr if defects else sys.stdout)
    return 1 if defects else 0


def _show_progress(line: str) -> None:
    """Rewrite one line in a terminal; a file or a pipe gets line after line."""
    if sys.stdout.isatty():
        print(f"\r{line:<79}", end="", flush=True)
    else:
        print(line, flush=True)


def main(argv: Sequence[str]) -> int:
    """Run `python -m mpcourse pages [--check | --address [URL]] [PAGE ...]`; return its status.

    0: all well, 1: a page failed or has defects, 2: there is no such page.
    """
    parser = argparse.ArgumentParser(
        prog="python -m mpcourse pages", parents=[pages_arguments()], allow_abbrev=False
    )
    arguments = parser.parse_args(argv)
    try:
        paths = find_pages(arguments.pages)
        if arguments.address is not None:
            address = (arguments.address or public_origin()).rstrip("/").removesuffix(".git")
            readdress(find_pages([]), address)
            print(f"{address} is written into {len(find_pages([]))} pages, README and setting")
            return 0
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return check(paths) if arguments.check else max(map(_execute_and_report, paths), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
