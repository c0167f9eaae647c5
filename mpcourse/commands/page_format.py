"""The form of a stored page: badges, bootstrap cell, and nothing that depends on the machine.

Page: all of them; `mpcourse.commands.pages` applies it. Source: the documentation of nbformat;
the three services' own pages on badges.
"""

import copy
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from mpcourse.commands.setup import ROOT

BRANCH = "main"
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
KEPT_CELL_METADATA = (
    "tags",
    "jupyter",
    "cellView",
)  # the rest is timing, scrolling and editors' own notes
BADGES_MARK = "<!-- badges -->"
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # in JupyterLab, on Colab
PAGE_LINK = re.compile(r"\]\(\d\d_(\w+)\.ipynb(?=[)#])")

BOOTSTRAP = """\
import os
import subprocess
import sys
from pathlib import Path

newer = False  # True: fetch the latest edition of the course
url = os.getenv("MPCOURSE_REPOSITORY", "{repository}")
here, clone = Path.cwd(), Path.cwd() / "mpcourse-clone"
owners = here.stat().st_uid, getattr(os, "getuid", int)()  # on Windows, all is owned by 0


def is_course(folder):
    \"""Whole, and ours where everybody may write (0o002; 0o1000: as in temporary folders).\"""
    if not all((folder / name).is_file() for name in ("mpcourse/__init__.py", "pyproject.toml")):
        return False
    found, around = folder.stat(), (here if folder == clone else folder).stat()
    ours = found.st_uid in owners and not found.st_mode & 0o1000
    return ours or not around.st_mode & 0o002


course = next(filter(is_course, [here, *here.parents, clone]), None)
command = ["git", "-C", course, "pull", "--ff-only"] if newer else []
assert not (newer and "mpcourse" in sys.modules), "Restart the kernel, then run this cell again"
if course is None:  # only this notebook is here, as on Colab and Kaggle: fetch the rest
    assert "/OWNER/" not in url, "First run: %env MPCOURSE_REPOSITORY=(address of the course)"
    assert not clone.exists(), f"{{clone}} is no whole clone of yours: delete it, run this again"
    course, command = clone, ["git", "clone", "--depth", "1", "--", url, clone]
if command:
    run = subprocess.run(command, capture_output=True, text=True)
    assert not run.returncode, f"Could not fetch {{url}} (Kaggle: Internet on?): {{run.stderr}}"
sys.path.insert(0, str(course))"""


def read_repository(root: Path = ROOT) -> str:
    """Read the course's public address, the one setting that badges and bootstrap cells follow."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["project"]["urls"]["Repository"]


def bootstrap_source(repository: str) -> str:
    """Write the cell that finds the course beside a notebook, or fetches it."""
    return BOOTSTRAP.format(repository=repository)


def badges(repository: str, page_name: str) -> str:
    """Write the line of links that open a page on Colab, Kaggle and Binder.

    It ends with its marker: at its start, an HTML comment would turn the whole line into HTML and
    the badges into plain text. Raises ValueError when the address is none of a GitHub repository.
    """
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", repository)
    if not match:
        raise ValueError(f"the badges need https://github.com/OWNER/NAME, not {repository!r}")
    name, page = match[1], f"notebooks/{page_name}"
    links = {
        "[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]": (
            f"https://colab.research.google.com/github/{name}/blob/{BRANCH}/{page}"
        ),
        "[![Open In Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]": (
            "https://kaggle.com/kernels/welcome"
            f"?src=https://raw.githubusercontent.com/{name}/{BRANCH}/{page}"
        ),
        "[![Launch Binder](https://mybinder.org/badge_logo.svg)]": (
            f"https://mybinder.org/v2/gh/{name}/{BRANCH}?urlpath=lab/tree/{page}"
        ),
    }
    return " ".join([*(f"{image}({link})" for image, link in links.items()), BADGES_MARK])


def page_key(page_name: str) -> str:
    """The name by which all else calls a page: its file's name without number and ending."""
    return page_name[3:].removesuffix(".ipynb")


def write_links(notebook: NotebookNode, *, page_name: str, pages: Sequence[str]) -> None:
    """Bring the numbers in title and links up to date, in place: they stand in file names alone."""
    numbered = {page_key(name): name for name in pages}

    def renumbered(match: re.Match) -> str:
        if match[1] not in numbered:
            raise ValueError(f"{page_name} links to a page {match[1]!r}, which there is not")
        return f"]({numbered[match[1]]}"

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = PAGE_LINK.sub(renumbered, cell.source)
    first = notebook.cells[0]
    first.source = re.sub(r"^# \d\d(?= )", f"# {page_name[:2]}", first.source)


def write_address(notebook: NotebookNode, repository: str, *, page_name: str) -> None:
    """Put the badge line into the title cell and the bootstrap cell after it, in place."""
    cells = notebook.cells
    if not (cells and cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")):
        raise ValueError(f"{page_name}: the first cell has to be Markdown starting with `# `")
    title, *rest = cells[0].source.split("\n")
    text = "\n".join(line for line in rest if BADGES_MARK not in line).strip("\n")
    cells[0].source = f"{title}\n\n{badges(repository, page_name)}\n\n{text}".rstrip()
    if not any("bootstrap" in cell.metadata.get("tags", []) for cell in cells):
        cells.insert(1, nbformat.v4.new_code_cell(id="bootstrap", metadata={"tags": ["bootstrap"]}))
    for cell in cells:
        if "bootstrap" in cell.metadata.get("tags", []):
            cell.source = bootstrap_source(repository)
            cell.metadata.update(copy.deepcopy(FOLDED))


def normalise(notebook: NotebookNode) -> NotebookNode:
    """A copy of a notebook without what depends on the machine, the editor or the moment.

    In format 4.5, with kernelspec python3, ids on all cells, and of their metadata only
    `KEPT_CELL_METADATA`.
    """
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata.pop("widgets", None)  # GitHub refuses to show a page that has it
    notebook.metadata.update(kernelspec=dict(KERNELSPEC), language_info={"name": "python"})
    _give_ids(notebook.cells)
    for cell in notebook.cells:
        cell.metadata = {k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA}
        if cell.cell_type == "code":
            cell.outputs = normalise_outputs(cell.outputs)
    return nbformat.from_dict(notebook)


def _give_ids(cells: Sequence[NotebookNode]) -> None:
    """Keep the first use of every id; name the other cells after their position."""
    taken, used = {cell.get("id") for cell in cells}, set()
    for position, cell in enumerate(cells, start=1):
        if not cell.get("id") or cell.id in used:
            cell.id = f"cell-{position:02}"
            while cell.id in taken:
                cell.id += "x"
            taken.add(cell.id)
        used.add(cell.id)


def normalise_outputs(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Tidy the outputs of one cell.

    Neighbouring pieces of one stream become one, empty ones go. A widget keeps its text only: its
    view names a model of a kernel that is gone. A traceback keeps the frames of the page only: the
    others hold paths of this machine.
    """
    tidy: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and tidy and tidy[-1].get("name") == output.name:
            tidy[-1].text += output.text
            continue
        if "data" in output:
            output.data.pop("application/vnd.jupyter.widget-view+json", None)
        if output.output_type == "error":
            entries = map(without_colours, output.traceback)
            output.traceback = [entry for entry in entries if not entry.startswith("File ")]
        tidy.append(output)
    return [output for output in tidy if output.output_type != "stream" or output.text]


def without_colours(text: str) -> str:
    """Take the terminal's colour codes out of a traceback."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def to_text(notebook: NotebookNode) -> str:
    """Write a notebook as the text of its file; nothing is repaired on the way."""
    return nbformat.v4.writes(notebook, indent=1) + "\n"
