"""Clean copies of the pages: no answer stands under its question, and no update meets an edit.

Behind `python -m mpcourse lab` and `handout` (page `start_here`). Standard library only.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mpcourse.commands.shell import write_whole

PAGES = "[0-9][0-9]_*.ipynb"
FIRST_PAGE = "00_start_here.ipynb"
EDITIONS = ".editions.json"  # beside the copies: file name -> digest of what was written there
# In a file of a page: they open it elsewhere, and are broken pictures where there is no network.
BADGES = re.compile(r'^ *".*<!-- badges -->\\n",\n( *"\\n",\n)?', re.MULTILINE)


class Copies(NamedTuple):
    """What became of the copies; file names, in the order of the pages."""

    made: list[str]  # there was none yet
    renewed: list[str]  # the page has changed and the copy was as it had been made
    offered: list[str]  # both have changed: the copy stays, this lies beside it


def clean_copy(page: str) -> str:
    """The text of a notebook without outputs and execution counts, its answers folded.

    Its metadata names the edition, which stays when the copy is worked in.
    """
    notebook = json.loads(page)
    notebook["metadata"]["mpcourse"] = {"edition": edition_of(notebook)}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(execution_count=None, outputs=[])
        elif "answer" in cell["metadata"].get("tags", []):
            cell["source"] = folded("".join(cell["source"]))
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def folded(answer: str) -> str:
    """Markdown that answers the question above it, behind a line to open it."""
    return f"<details><summary>Answer</summary>\n\n{answer}\n\n</details>"


def edition_of(notebook: dict) -> str:
    """What the cells of a page say, in 12 characters.

    Title and first cell are left out: they hold the public address, which is another in a fork.
    """
    cells = [c for c in notebook["cells"][1:] if "bootstrap" not in c["metadata"].get("tags", [])]
    return _digest("\0".join("".join(cell["source"]) for cell in cells))[:12]


def write_copies(pages: Path, folder: Path) -> Copies:
    """Bring the clean copies of all pages in a folder up to date.

    A copy that was opened and saved, run, or edited is never touched again: a newer edition of its
    page is written beside it, once. A copy that was deleted is made anew.
    """
    if folder.resolve() == pages.resolve():
        raise ValueError(f"{folder} holds the pages themselves: name another folder")
    sources = sorted(pages.glob(PAGES))
    if not sources:
        raise ValueError(f"{pages} holds no pages")
    folder.mkdir(parents=True, exist_ok=True)
    editions = _read_editions(folder)
    copies = Copies([], [], [])
    for source in sources:
        _remove_renumbered(folder, source.name, editions)
        text = BADGES.sub("", clean_copy(source.read_text(encoding="utf-8")))
        _write_copy(folder, source, text, editions, copies)
    write_whole(folder / EDITIONS, json.dumps(editions, indent=1, sort_keys=True) + "\n")
    return copies


def _write_copy(
    folder: Path, source: Path, text: str, editions: dict[str, str], copies: Copies
) -> None:
    digest = _digest(text)
    path = folder / source.name
    if path.exists():
        beside = [name for name in editions if name.startswith(f"{source.stem}.")]
        if digest in (editions[name] for name in beside) or _digest_of(path) == digest:
            return  # this edition has been handed out
        path = next(p for p in _places(path) if not p.exists() or _is_untouched(p, editions))
        done = copies.renewed if path.name == source.name else copies.offered
    else:
        done = copies.made
    write_whole(path, text)
    editions[path.name] = digest
    done.append(path.name)


def _places(path: Path) -> Iterator[Path]:
    """Where an edition may go: `07_pipeline.ipynb`, then `.new.ipynb`, `.new-2.ipynb`, and on."""
    yield path
    yield path.with_suffix(".new.ipynb")
    count = 2
    while True:
        yield path.with_suffix(f".new-{count}.ipynb")
        count += 1


def _remove_renumbered(folder: Path, name: str, editions: dict[str, str]) -> None:
    """Remove untouched copies of a page that has another number by now."""
    for path in sorted(folder.glob(f"[0-9][0-9]{name[2:]}")):
        if path.name != name and _is_untouched(path, editions):
            path.unlink()
            del editions[path.name]


def _is_untouched(path: Path, editions: dict[str, str]) -> bool:
    return _digest_of(path) == editions.get(path.name)


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_editions(folder: Path) -> dict[str, str]:
    """What was written where; without it every copy counts as touched."""
    try:
        found = json.loads((folder / EDITIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def in_words(copies: Copies, folder: str) -> str:
    """What became of the copies, for people; empty when nothing did."""
    lines = []
    if copies.made:
        lines.append(f"{folder} has clean copies of {len(copies.made)} pages: work in these.")
    if copies.renewed:
        lines.append(f"{folder}: newer editions of {', '.join(copies.renewed)}.")
    if copies.offered:
        lines.append(
            f"{folder}: your copies stay as they are; newer editions lie beside them as "
            f"{', '.join(copies.offered)}."
        )
    return "\n".join(lines)
