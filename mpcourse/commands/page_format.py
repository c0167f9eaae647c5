"""The form of a stored page: badges, bootstrap cell, and nothing that depends on the machine.

Page: all of them; `mpcourse.commands.pages` applies it. Source: the documentation of nbformat.
"""

import copy
import re
from collections.abc import Sequence

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from nbformat.validator import normalize

from mpcourse.commands.address import BADGES_MARK, Address, badges
from mpcourse.commands.clean_copies import page_key, tags_of

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
KEPT_CELL_METADATA = ("tags", "jupyter", "cellView")  # the rest is timing and editors' own notes
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # in JupyterLab, on Colab
PAGE_LINK = re.compile(r"\]\((\d\d_(\w+)\.ipynb)(?=[)#])")

BOOTSTRAP = """\
import os
import subprocess
import sys
from pathlib import Path

url, branch = os.getenv("MPCOURSE_REPOSITORY", "{0.repository}"), "{0.branch}"
here, clone = Path.cwd(), Path.cwd() / "mpcourse-clone"
owners = here.stat().st_uid, getattr(os, "getuid", int)()  # on Windows, all is owned by 0


def is_course(folder):
    \"""Whole, and ours where everybody may write (0o002; 0o1000: as in temporary folders).\"""
    if not all((folder / name).is_file() for name in ("mpcourse/__init__.py", "pyproject.toml")):
        return False
    found, around = folder.stat(), (here if folder == clone else folder).stat()
    ours = found.st_uid in owners and not found.st_mode & 0o1000
    return ours or not around.st_mode & 0o002


course, command = next(filter(is_course, [here, *here.parents, clone]), None), []
if course is None:  # only this notebook is here, as on Colab and Kaggle: fetch the rest
    assert "/OWNER/" not in url, "First run: %env MPCOURSE_REPOSITORY=(address of the course)"
    assert not clone.exists(), f"{{clone}} is no whole clone of yours: delete it, run this again"
    command = ["clone", "--depth", "1", "--branch", branch, "--", url, clone]
elif course == clone and "mpcourse" not in sys.modules:  # of an earlier day
    command = ["-C", clone, "pull", "--ff-only"]  # without a network it stays as it is
if command:
    settings = {{**os.environ, "GIT_TERMINAL_PROMPT": "0"}}
    run = subprocess.run(["git", *command], env=settings, capture_output=True, text=True)
    failed = run.returncode and not course
    assert not failed, f"Could not fetch {{url}} (Kaggle: Internet on?): {{run.stderr}}"
course = course or clone
sys.path.insert(0, str(course))"""


def bootstrap_source(address: Address) -> str:
    """Write the cell that finds the course beside a notebook, or fetches it."""
    return BOOTSTRAP.format(address)


def write_links(notebook: NotebookNode, *, page_name: str, pages: Sequence[str]) -> None:
    """Bring the numbers in title and links up to date, in place: they stand in file names alone."""
    names = {page_key(name): name for name in pages}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":  # a rule names links to pages that are not there
            cell.source = PAGE_LINK.sub(lambda m: f"]({names.get(m[2], m[1])}", cell.source)
    first = notebook.cells[0]
    first.source = re.sub(r"^# \d\d(?= )", f"# {page_name[:2]}", first.source)


def write_address(notebook: NotebookNode, address: Address, *, page_name: str) -> None:
    """Put the badge line into the title cell and the bootstrap cell after it, in place."""
    cells = notebook.cells
    if not (cells and cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")):
        raise ValueError(f"{page_name}: the first cell has to be Markdown starting with `# `")
    title, *rest = cells[0].source.split("\n")
    text = "\n".join(line for line in rest if BADGES_MARK not in line).strip("\n")
    cells[0].source = f"{title}\n\n{badges(address, page_name)}\n\n{text}".rstrip()
    if not any("bootstrap" in tags_of(cell) for cell in cells):
        cells.insert(1, new_code_cell(id="bootstrap", metadata={"tags": ["bootstrap"]}))
    for cell in cells:
        if "bootstrap" in tags_of(cell):
            cell.source = bootstrap_source(address)
            cell.metadata.update(copy.deepcopy(FOLDED))


def normalise(notebook: NotebookNode) -> NotebookNode:
    """A copy of a notebook without what depends on the machine, the editor or the moment.

    In format 4.5, with kernelspec python3, ids on all cells, and of their metadata only
    `KEPT_CELL_METADATA`. Neighbouring pieces of one stream become one; a widget keeps its text
    only, as its view names a model of a kernel that is gone; a traceback keeps the frames of the
    page only, as the others hold paths of this machine.
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
        output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
        if output.output_type == "error":
            entries = map(without_colours, output.traceback)
            output.traceback = [entry for entry in entries if not entry.startswith("File ")]
        if tidy and output.output_type == tidy[-1].output_type == "stream":
            if output.name == tidy[-1].name:
                tidy[-1].text += output.text
                continue
        if output.get("text", "something"):
            tidy.append(output)
    return tidy


def without_colours(text: str) -> str:
    """Take the terminal's colour codes out of a traceback."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def to_text(notebook: NotebookNode) -> str:
    """Write a notebook as the text of its file; nothing is repaired on the way."""
    return nbformat.v4.writes(notebook, indent=1) + "\n"
