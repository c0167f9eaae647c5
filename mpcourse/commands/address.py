"""The course's public address: where a clone came from, and the lines in which it is kept.

Page: all of them; `python -m mpcourse pages --address` writes it into badges, first cells and
README.
"""

import re
import subprocess
from pathlib import Path

from mpcourse.commands.page_format import BADGES_MARK, ROOT, badges, read_repository

PLACEHOLDER = "https://github.com/OWNER/mpcourse"
ON_GITHUB = re.compile(
    r"(?:https://(?:[^@/]+@)?|git@|ssh://git@)github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
FIRST_PAGE = "00_start_here.ipynb"
MEND = "python3 -m mpcourse pages --address https://github.com/YOU/mpcourse"


def public_origin(root: Path = ROOT) -> str:
    """Tell from which public repository this clone came.

    Args:
        root: Folder of the clone.

    Returns:
        The address, as in "https://github.com/OWNER/mpcourse".

    Raises:
        ValueError: `root` is no clone, or its origin is not on GitHub: the badges need that.
    """
    # git's own setting: `git remote get-url` would follow a rewriting of addresses on this machine
    command = ["git", "-C", str(root), "config", "--get", "remote.origin.url"]
    try:
        origin = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        origin = ""
    match = ON_GITHUB.fullmatch(origin)
    if not match:
        found = f"the clone's origin is {origin!r}" if origin else "this is no clone with an origin"
        raise ValueError(f"{found}, no repository on GitHub; name one: {MEND}")
    return f"https://github.com/{match[1]}"


def write_setting(address: str, root: Path = ROOT) -> None:
    """Put the address where the course keeps it: `pyproject.toml`, and the README's first lines.

    `read_repository` takes it from the former; the latter are badges and what to clone.

    Args:
        address: Of the form "https://github.com/OWNER/NAME".
        root: Folder with both files.

    Raises:
        ValueError: The address is not of this form; nothing has changed.
    """
    lines = {
        "pyproject.toml": {r'^Repository = ".*"$': f'Repository = "{address}"'},
        "README.md": {
            rf"^.*{BADGES_MARK}$": badges(address, FIRST_PAGE),
            r"^git clone \S+ mpcourse$": f"git clone {address} mpcourse",
        },
    }
    for name, replacements in lines.items():
        text = (root / name).read_text(encoding="utf-8")
        for line, replacement in replacements.items():
            text = re.sub(line, replacement, text, count=1, flags=re.MULTILINE)
        (root / name).write_text(text, encoding="utf-8")


def address_remedy(root: Path = ROOT) -> str:
    """Say what to type while badges and first cells lead nowhere; empty when they lead to a course.

    Args:
        root: Folder with the `pyproject.toml`.
    """
    if read_repository(root) != PLACEHOLDER:
        return ""
    return (
        f"badges and first cells lead nowhere until someone who publishes the course types {MEND}"
    )
