"""Execute the pages in fresh kernels and save them in the one form that all have.

Page: all of them; `python -m mpcourse pages` is for whoever writes one. A stored page has badges, a
first cell that finds the course, and nothing that depends on the machine. Source: the documentation
of nbclient and nbformat.
"""

import copy
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from nbformat.validator import normalize

from mpcourse.commands import clean_copies as copies
from mpcourse.commands.address import Address, badges, find_address, read_address, write_setting
from mpcourse.commands.setup import ROOT
from mpcourse.exercises import PAGES

NOTEBOOKS = ROOT / "notebooks"
CELL_TIMEOUT_S = 300
PAGE_LINK = re.compile(r"\]\((\d\d_(\w+)\.ipynb)(?=[)#])")
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
KEPT_CELL_METADATA = ("tags", "jupyter", "cellView")  # the rest is timing and editors' own notes
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # in JupyterLab, on Colab
WIDGET = "application/vnd.jupyter.widget-view+json"


class ThisPython(AsyncKernelManager):
    """Starts kernels of this Python, whatever kernels are installed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), **settings)


def read(path: Path) -> NotebookNode:
    """Read a notebook of format 4 as it is: nothing is repaired, so that a check sees it all."""
    return nbformat.v4.reads(path.read_text(encoding="utf-8"))


def to_text(notebook: NotebookNode) -> str:
    """Write a notebook as the text of its file; nothing is repaired on the way."""
    return nbformat.v4.writes(notebook, indent=1) + "\n"


def save(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook in one step: whoever looks finds the old file or the new one, whole."""
    nbformat.validate(notebook)
    copies.write_whole(path, to_text(notebook))


def renew(path: Path, address: Address, *, run: bool) -> None:
    """Bring badges, first cell, links and solutions of a page up to date, run it, and save it.

    The stored page and its clean copy are replaced only when every cell ran.
    """
    notebook = read(path)
    write_address(notebook, address, page_name=path.name)
    write_links(notebook, page_name=path.name, pages=[page.name for page in copies.find_pages([])])
    write_solutions(notebook, copies.page_key(path.name))
    if run:
        nbclient.execute(
            notebook,
            cwd=str(path.resolve().parent),
            kernel_manager_class=ThisPython,  # nbclient ends the kernel of a manager that it made
            timeout=CELL_TIMEOUT_S,
            record_timing=False,
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],  # without the kernel's notes on its own sockets
        )
    notebook = normalise(notebook)
    save(notebook, path)
    if path.resolve().parent == NOTEBOOKS:
        (ROOT / copies.CLEAN).mkdir(exist_ok=True)
        copies.write_whole(ROOT / copies.CLEAN / path.name, copies.clean_copy(to_text(notebook)))


def write_address(notebook: NotebookNode, address: Address, *, page_name: str) -> None:
    """Put the badge line into the title cell and the bootstrap cell after it, in place."""
    cells = notebook.cells
    if not (cells and cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")):
        raise ValueError(f"{page_name}: the first cell has to be Markdown starting with `# `")
    title, *rest = cells[0].source.split("\n")
    text = "\n".join(line for line in rest if copies.BADGES_MARK not in line).strip("\n")
    cells[0].source = f"{title}\n\n{badges(address, page_name)}\n\n{text}".rstrip()
    if not any("bootstrap" in copies.tags_of(cell) for cell in cells):
        cells.insert(1, new_code_cell(id="bootstrap", metadata={"tags": ["bootstrap"]}))
    for cell in cells:
        if "bootstrap" in copies.tags_of(cell):
            cell.source = bootstrap_source(address)
            cell.metadata.update(copy.deepcopy(FOLDED))


def bootstrap_source(address: Address) -> str:
    """The cell that finds the course beside a notebook or fetches it: the first page's, for all."""
    cells = read(NOTEBOOKS / copies.FIRST_PAGE).cells
    [cell] = (cell for cell in cells if "bootstrap" in copies.tags_of(cell))
    line = f'url, branch = os.getenv("MPCOURSE_REPOSITORY", "{address.repository}"), '
    line += f'"{address.branch}"'
    return re.sub("^url, branch = .*", line, cell.source, count=1, flags=re.MULTILINE)


def write_links(notebook: NotebookNode, *, page_name: str, pages: Sequence[str]) -> None:
    """Bring the numbers in title and links up to date, in place: they stand in file names alone."""
    names = {copies.page_key(name): name for name in pages}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":  # a rule names links to pages that are not there
            cell.source = PAGE_LINK.sub(lambda m: f"]({names.get(m[2], m[1])}", cell.source)
    first = notebook.cells[0]
    first.source = re.sub(r"^# \d\d(?= )", f"# {page_name[:2]}", first.source)


def write_solutions(notebook: NotebookNode, page: str) -> None:
    """Put a folded solution behind the hint of each exercise that the page does not go on with."""
    for check, text, following in copies.checks_of(notebook.cells):
        if following and following[0].metadata.get("jupyter"):
            continue  # a folded cell is one
        name = copies.CHECK.search(check.source)[1]
        if name not in PAGES.get(page, {}):
            raise ValueError(f"{name} is not in mpcourse/exercises/{page}.py")
        words, code = PAGES[page][name].solution_text()
        solution = copies.folded(f"{words}\n\n```python\n{code}\n```", "A solution")
        hint, end, rest = copies.SOLUTION.sub("", text.source).partition("</details>")
        above, below = (hint + end, rest) if end else ("", hint)
        parts = ["\n".join(filter(None, [above.strip(), solution])), below.strip()]
        text.source = "\n\n".join(filter(None, parts))


def normalise(notebook: NotebookNode) -> NotebookNode:
    """A copy of a notebook without what depends on the machine, the editor or the moment.

    Neighbouring pieces of one stream become one; a widget keeps its text only, as its view names a
    model of a kernel that is gone; a traceback keeps the frames of the page only.
    """
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata.pop("widgets", None)  # GitHub refuses to show a page that has it
    notebook.metadata.update(kernelspec=dict(KERNELSPEC), language_info={"name": "python"})
    _, notebook = normalize(notebook)  # gives ids where there are none, or the same twice
    for cell in notebook.cells:
        cell.metadata = {k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA}
        if cell.cell_type == "code":
            cell.outputs = _tidy(cell.outputs)
    return nbformat.from_dict(notebook)


def _tidy(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    tidy: list[NotebookNode] = []
    for output in outputs:
        output.get("data", {}).pop(WIDGET, None)
        if output.output_type == "error":
            entries = map(without_colours, output.traceback)
            output.traceback = [entry for entry in entries if not entry.startswith("File ")]
        name = output.get("name")  # of a stream; nothing else has one
        if name and tidy and tidy[-1].get("name") == name:
            tidy[-1].text += output.text
        elif output.get("text", "something"):
            tidy.append(output)
    return tidy


def without_colours(text: str) -> str:
    """Take the terminal's colour codes out of a traceback."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


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


def main(asked: dict) -> int:
    """Run `python -m mpcourse pages` as `asked`; return its status.

    0: all well, 1: a page failed, 2: there is no such page, or no such address.
    """
    names, new = asked["pages"], asked["address"]
    try:
        paths = copies.find_pages(names if new is None else [])
        address = read_address() if new is None else find_address(new)
        if new is None and not asked["stored"]:
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
    sys.exit(main(json.loads(sys.argv[1])))
