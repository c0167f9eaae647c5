"""Which notebooks of a folder are learners' copies of which pages.

Behind `python -m mpcourse grade`: a folder for each learner, or each learner's name before the
page's in the file names. A file under another name is known by what is in it.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpcourse.commands.page_format import page_key

PASSED_OVER = {"__pycache__", "node_modules"}  # and all that starts with a dot
LARGEST = 2**27  # bytes
CHECK = re.compile(r"\bcheck_\w+")


@dataclass(frozen=True)
class Submission:
    """One notebook that was handed in."""

    learner: str
    path: Path
    file: str  # its place in the folder, as people read it
    page: Path | None  # the course's page of which it is a copy, if any
    problem: str = ""  # why it is not read


def find_submissions(folder: Path, pages: Sequence[Path]) -> list[Submission]:
    """Look up all notebooks of a folder and the folders in it."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "is not there"
        raise ValueError(f"{folder} {what}: name the folder that holds the learners' notebooks")
    found = [
        path
        for path in folder.rglob("*.ipynb")
        if (path.is_file() or path.is_symlink()) and not _passed_over(path.relative_to(folder))
    ]
    if not found:
        raise ValueError(
            f"{folder} holds no notebooks: LEARNER/NN_page.ipynb or LEARNER_NN_page.ipynb is "
            "what is looked for"
        )
    submissions = [_submission(path, folder, pages) for path in found]
    return sorted(submissions, key=lambda s: (s.learner.casefold(), s.file))


def _passed_over(path: Path) -> bool:
    return any(part.startswith(".") or part in PASSED_OVER for part in path.parts)


def _submission(path: Path, folder: Path, pages: Sequence[Path]) -> Submission:
    """Pages are found by name: an older edition may have another number."""
    keys = {page_key(page.name): page for page in pages}
    names = "|".join(sorted(map(re.escape, keys), key=len, reverse=True))
    match = re.match(rf"(.*?)(?<!\d)\d\d_({names})(?![A-Za-z0-9])", path.stem, re.DOTALL)
    relative = path.relative_to(folder)
    before = match[1].strip(" _-.") if match else ""
    learner = relative.parts[0] if len(relative.parts) > 1 else before or path.stem
    if match and not before and len(relative.parts) == 1:
        learner = folder.resolve().name
    named = (clean(learner), path, clean(relative.as_posix()))
    if path.is_symlink() or path.stat().st_size > LARGEST:
        return Submission(*named, None, "a link or more than 128 MB: it was not read")
    return Submission(*named, keys[match[2]] if match else recognised(path, pages))


def recognised(path: Path, pages: Sequence[Path]) -> Path | None:
    """The page of which a file is a copy, by its title or else by the checks that it calls."""
    title, checks = _marks(path)
    marks = {page: _marks(page) for page in pages}
    for page in pages:
        if title and marks[page][0] == title:
            return page
    best = max(pages, key=lambda page: len(checks & marks[page][1]))
    return best if 2 * len(checks & marks[best][1]) > len(marks[best][1]) else None


def _marks(path: Path) -> tuple[str, set[str]]:
    """A notebook's title, without its number, and the checks that its cells call."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8-sig"))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "", set()
    code = "\n".join(source for kind, source in sources if kind == "code")
    first = sources[0][1].split("\n")[0] if sources else ""
    return re.sub(r"^# \d\d\W*", "", first) * first.startswith("# "), {*CHECK.findall(code)}


def clean(text: str) -> str:
    """Text that any file and terminal takes: what cannot be printed becomes a black diamond.

    Line ends stay. Names of files may hold bytes that are no UTF-8, messages may hold codes that
    move a terminal's cursor.
    """
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def digest(*parts: bytes) -> str:
    """One digest of several contents."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()
