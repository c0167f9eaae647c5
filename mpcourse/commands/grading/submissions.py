"""Which notebooks of a folder are learners' copies of which pages.

Behind `python -m mpcourse grade`: a folder for each learner, or each learner's name before the
page's in the file names.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpcourse.commands.page_format import page_key

PASSED_OVER = {"__pycache__", "node_modules"}  # and all that starts with a dot


@dataclass(frozen=True)
class Submission:
    """One notebook that was handed in."""

    learner: str
    path: Path
    file: str  # its place in the folder, as people read it
    page: Path | None  # the course's page of which it is a copy, if any


def find_submissions(folder: Path, pages: Sequence[Path]) -> list[Submission]:
    """Look up all notebooks of a folder and the folders in it."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "is not there"
        raise ValueError(f"{folder} {what}: name the folder that holds the learners' notebooks")
    found = [
        path
        for path in folder.rglob("*.ipynb")
        if path.is_file() and not _passed_over(path.relative_to(folder).parts)
    ]
    if not found:
        raise ValueError(
            f"{folder} holds no notebooks: LEARNER/NN_page.ipynb or LEARNER_NN_page.ipynb is "
            "what is looked for"
        )
    submissions = [_submission(path, folder, pages) for path in found]
    return sorted(submissions, key=lambda s: (s.learner.casefold(), s.file))


def _passed_over(parts: Sequence[str]) -> bool:
    return any(part.startswith(".") or part in PASSED_OVER for part in parts)


def _submission(path: Path, folder: Path, pages: Sequence[Path]) -> Submission:
    """Pages are found by name: an older edition may have another number."""
    keys = {page_key(page.name): page for page in pages}
    names = "|".join(sorted(map(re.escape, keys), key=len, reverse=True))
    match = re.match(rf"(.*?)(?<!\d)\d\d_({names})(?![A-Za-z0-9])", path.stem, re.DOTALL)
    relative = path.relative_to(folder)
    before = match[1].strip(" _-.") if match else ""
    learner = relative.parts[0] if len(relative.parts) > 1 else before or folder.resolve().name
    page = keys[match[2]] if match else None
    return Submission(clean(learner), path, clean(relative.as_posix()), page)


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
