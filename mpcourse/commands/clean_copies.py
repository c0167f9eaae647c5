"""Clean copies of the pages: no answer stands under its question, and no update meets an edit.

Behind `python -m mpcourse lab` and `handout` (page `start_here`). Standard library only.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mpcourse.commands.setup import ROOT

PAGES = "[0-9][0-9]_*.ipynb"
FIRST_PAGE = "00_start_here.ipynb"
CLEAN = "notebooks/clean"  # of the pages as they are, for the badges
HANDED_IN = "LEARNER/NN_page.ipynb or LEARNER_NN_page.ipynb"
EDITIONS = ".editions.json"  # beside the copies: file name -> digest of what was written there
# In a file of a page: they open it elsewhere, and are broken pictures where there is no network.
BADGES_MARK = "<!-- badges -->"
BADGES = re.compile(rf'^ *".*{BADGES_MARK}\\n",\n( *"\\n",\n)?', re.MULTILINE)
SOLUTION = re.compile(r"<details><summary>A solution</summary>.*?</details>", re.DOTALL)
WORDS_ON_SOLUTION = re.compile(
    SOLUTION.pattern + r"|(?<!\S)(?=\S)[^.?\n]*\b[Ff]olded\b[^.?\n]*\.", re.DOTALL
)
WORDS = {
    "made": "has clean copies of {0} pages: work in these.",
    "renewed": "has newer editions of {1}.",
    "offered": "keeps your copies as they are; newer editions lie beside them as {1}.",
}
LEFT_OUT = "The solution was left out of this copy."
STAND_IN = """\
from mpcourse.commands.clean_copies import left_out

# The course's own solution runs here, for what comes after it.
get_ipython().run_cell(left_out("{page}", "{cell}")).raise_error()"""
CHECK = re.compile(r"(check_\w+)\((.*)\)")  # in a check cell: its name, what it takes
STANDS_IN = re.compile(r'run_cell\(left_out\(".*", "(.*)"\)')


def find_pages(names: Sequence[str], *, folder: Path = ROOT / "notebooks") -> list[Path]:
    """Pages by name ("pipeline"), number ("07" or "7") or path, in this order; no names: all."""
    pages = sorted(folder.glob(PAGES))
    return [_find_page(name, pages) for name in names] if names else pages


def page_key(page_name: str) -> str:
    """The name by which all else calls a page: its file's name without number and ending."""
    return page_name[3:].removesuffix(".ipynb")


def _find_page(name: str, pages: Sequence[Path]) -> Path:
    if name.endswith(".ipynb") and Path(name).is_file():
        return Path(name)
    for page in pages:
        if name in (page_key(page.name), page.stem, page.name) or name.zfill(2) == page.name[:2]:
            return page
    raise ValueError(f"no page {name!r}; there are: {', '.join(p.stem for p in pages) or 'none'}")


def clean_copy(page: str) -> str:
    """The text of a notebook without outputs and execution counts, its answers folded."""
    notebook = json.loads(page)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(execution_count=None, outputs=[])
        elif "answer" in tags_of(cell):
            cell["source"] = folded("".join(cell["source"]))
    return _to_text(notebook)


def folded(text: str, summary: str = "Answer") -> str:
    """Markdown behind a line to open it."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def without_solutions(page: str, key: str) -> str:
    """The text of a page or its copy with a sentence, or a call, in the place of each solution."""
    notebook = json.loads(page)
    for _, text, following in checks_of(notebook["cells"]):
        words = WORDS_ON_SOLUTION.sub(LEFT_OUT, "".join(text["source"]))
        hidden = [cell for cell in following if "jupyter" in cell["metadata"]]
        if hidden and (hidden[0] is following[0] or LEFT_OUT in words):
            hidden[0]["source"] = STAND_IN.format(page=key, cell=hidden[0]["id"])
        first, *rest = words.split(LEFT_OUT)
        text["source"] = f"{first}{LEFT_OUT}{''.join(rest)}" if rest else f"{first}\n\n{LEFT_OUT}"
    return _to_text(notebook)


def checks_of(cells: Sequence[dict]) -> Iterator[tuple[dict, dict, Sequence[dict]]]:
    """Each check cell of a page, the text below it, and what follows, to the next check."""
    checks = [i for i, cell in enumerate(cells) if "check" in tags_of(cell)]
    for check, end in zip(checks, [*checks, len(cells)][1:], strict=True):
        below = cells[check + 1 : end]
        if below and below[0]["cell_type"] == "markdown":
            yield cells[check], below[0], below[1:]


def left_out(key: str, cell_id: str) -> str:
    """The source of a cell that a copy without solutions lacks, from the stored page."""
    [page] = find_pages([key])
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["id"] == cell_id)


def tags_of(cell: dict) -> list[str]:
    """The tags of a cell, of a notebook as JSON or as nbformat's."""
    return cell["metadata"].get("tags", [])


def _to_text(notebook: dict) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def write_copies(pages: Sequence[Path], folder: Path, *, solutions: bool = True) -> str:
    """Bring the clean copies of pages in a folder up to date; say in words what changed.

    A copy that was opened and saved, run, or edited is never touched again: a newer edition of its
    page is written beside it, once. A copy that was deleted is made anew.
    """
    if any(folder.resolve() in (page.parent, ROOT / CLEAN) for page in map(Path.resolve, pages)):
        raise ValueError(f"{folder} holds the pages themselves: name another folder")
    if not pages:
        raise ValueError("there are no pages")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        editions = dict(json.loads((folder / EDITIONS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # lost: every copy counts as touched
        editions = {}
    done: dict[str, list[str]] = {what: [] for what in WORDS}
    for page in pages:
        text = BADGES.sub("", clean_copy(page.read_text(encoding="utf-8")))
        text = text if solutions else without_solutions(text, page_key(page.name))
        what, path = _place(folder / page.name, _digest(text.encode()), editions)
        if what:
            write_whole(path, text)
            editions[path.name] = _digest(text.encode())
            done[what].append(path.name)
    write_whole(folder / EDITIONS, json.dumps(editions, indent=1, sort_keys=True) + "\n")
    said = {what: WORDS[what].format(len(names), ", ".join(names)) for what, names in done.items()}
    return "\n".join(f"{folder}/ {said[what]}" for what in done if done[what])


def _place(path: Path, digest: str, editions: dict[str, str]) -> tuple[str, Path]:
    """What becomes of an edition, if anything, and in which file; removes what it replaces."""

    def is_untouched(path: Path) -> bool:
        return _digest(path.read_bytes()) == editions.get(path.name)

    beside = path.with_suffix(f".new-{digest[:6]}.ipynb")
    for old in path.parent.glob(f"[0-9][0-9]{path.stem[2:]}.*ipynb"):
        if old not in (path, beside) and is_untouched(old):  # another number, or an older offer
            old.unlink()
    if not path.exists():
        return "made", path
    if _digest(path.read_bytes()) == digest:
        return "", path
    if is_untouched(path):
        return "renewed", path
    return "" if beside.name in editions else "offered", beside


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step: whoever looks finds the old one or the new one, whole."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(text.encode())
        os.replace(part, path)
    except OSError:  # the disk is full: what is there of it helps nobody
        part.unlink(missing_ok=True)
        raise
