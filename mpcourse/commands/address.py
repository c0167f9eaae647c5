"""The course's public address: where a clone came from, the setting, badges that lead there.

Sources: Colab's and Binder's pages on badges; Kaggle announced `kernels/welcome?src=` with
addresses of the form github.com/OWNER/NAME/blob/... (kaggle.com/product-feedback/152480).
"""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

from mpcourse.commands.clean_copies import BADGES_MARK, CLEAN, FIRST_PAGE
from mpcourse.commands.setup import ROOT

PLACEHOLDER = "https://github.com/OWNER/mpcourse"
ON_GITHUB = re.compile(
    r"(?:https://(?:[^@/]+@)?|git@|ssh://git@)github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
BRANCH = re.compile(r"\w[\w.-]*", re.ASCII)
MEND = "python3 -m mpcourse pages --address https://github.com/YOU/mpcourse"
BADGES = (
    "[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{name}/blob/{branch}/{page}) "
    "[![Open In Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]"
    "(https://kaggle.com/kernels/welcome?src=https://github.com/{name}/blob/{branch}/{page}) "
    "[![Launch Binder](https://mybinder.org/badge_logo.svg)]"
    # at its start, an HTML comment would turn the whole line into HTML
    f"(https://mybinder.org/v2/gh/{{name}}/{{branch}}?urlpath=lab/tree/{{page}}) {BADGES_MARK}"
)


class Address(NamedTuple):
    """Where the public finds the course, as in "https://github.com/OWNER/NAME" and "main"."""

    repository: str
    branch: str


def read_address(root: Path = ROOT) -> Address:
    """Read the one setting that badges and bootstrap cells follow."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return Address(
        settings["project"]["urls"]["Repository"], settings["tool"]["mpcourse"]["branch"]
    )


def find_address(repository: str = "", root: Path = ROOT) -> Address:
    """Check an address, the clone's origin if none is named; its branch is the clone's.

    Raises ValueError when the three services could not open it: they need a repository on GitHub,
    and a branch whose name is one word in a link.
    """
    # git's own setting: `git remote get-url` would follow a rewriting of addresses on this machine
    origin = repository or _ask_git("config", "--get", "remote.origin.url", root=root)
    match = ON_GITHUB.fullmatch(origin)
    if not match:
        found = f"{origin!r} is" if origin else "this is no clone with an origin,"
        raise ValueError(f"{found} no repository on GitHub; name one: {MEND}")
    branch = _ask_git("symbolic-ref", "--short", "HEAD", root=root)
    if not BRANCH.fullmatch(branch):
        words = "letters, digits, points, dashes and underscores (git checkout -b main)"
        raise ValueError(f"the branch is {branch!r}: be on one whose name has only {words}")
    return Address(f"https://github.com/{match[1]}", branch)


def _ask_git(*words: str, root: Path) -> str:
    try:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:  # there is no git here
        return ""


def badges(address: Address, page_name: str) -> str:
    """Write the line of links that open the clean copy of a page on Colab, Kaggle and Binder."""
    name = address.repository.removeprefix("https://github.com/")
    return BADGES.format(name=name, branch=address.branch, page=f"{CLEAN}/{page_name}")


def clone_line(address: Address) -> str:
    """What to type to get the course from there."""
    branch = f"--branch {address.branch} " if address.branch != "main" else ""
    return f"git clone {branch}{address.repository} mpcourse"


def write_setting(address: Address, root: Path = ROOT) -> None:
    """Put the address where the course keeps it: `pyproject.toml`, and the README's first lines."""
    for name, line, new in [
        ("pyproject.toml", r'^Repository = ".*"$', f'Repository = "{address.repository}"'),
        ("pyproject.toml", r'^branch = ".*"$', f'branch = "{address.branch}"'),
        ("README.md", rf"^.*{BADGES_MARK}$", badges(address, FIRST_PAGE)),
        ("README.md", r"^git clone .*mpcourse$", clone_line(address)),
    ]:
        text = (root / name).read_text(encoding="utf-8")
        text = re.sub(line, new, text, count=1, flags=re.MULTILINE)
        (root / name).write_text(text, encoding="utf-8")
