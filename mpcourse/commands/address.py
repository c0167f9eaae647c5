"""The course's public address: where a clone came from, and the lines in which it is kept.

Page: all of them; `python -m mpcourse pages --address` writes it into badges, first cells and
README.
"""

import re
import subprocess
from pathlib import Path

from mpcourse.commands.clean_copies import FIRST_PAGE
from mpcourse.commands.page_format import BADGES_MARK, badges, read_repository
from mpcourse.commands.setup import ROOT

PLACEHOLDER = "https://github.com/OWNER/mpcourse"
ON_GITHUB = re.compile(
    r"(?:https://(?:[^@/]+@)?|git@|ssh://git@)github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
MEND = "python3 -m mpcourse pages --address https://github.com/YOU/mpcourse"


def public_origin(root: Path = ROOT) -> str:
    """Tell from which public repository this clone came, as in "https://github.com/OWNER/mpcourse".

    Raises ValueError when its origin is not on GitHub: the badges need that.
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
    """Say what to type while badges and first cells lead nowhere; empty when all is well."""
    if read_repository(root) != PLACEHOLDER:
        return ""
    return (
        f"badges and first cells lead nowhere until someone who publishes the course types {MEND}"
    )
