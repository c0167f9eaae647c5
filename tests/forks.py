"""Someone's fork of the course: a bare repository on this machine that answers to an address."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mpcourse.commands.setup import ROOT

ADDRESS = "https://github.com/someone/their-fork"
KEPT = ("mpcourse", "data", "notebooks", "binder")


def git(*words: object, cwd: Path, environment: dict[str, str] | None = None) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *map(str, words)]
    subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True)


@dataclass(frozen=True)
class Fork:
    """A repository, a clone of it in which the address was written, and what that command said."""

    bare: Path
    clone: Path
    said: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which git fetches from here what it is asked to fetch from `ADDRESS`."""
        return with_address_here(self.bare)


def with_address_here(bare: Path) -> dict[str, str]:
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{bare.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
    }


def make_fork(folder: Path) -> Fork:
    """Do what someone does who forks the course: clone, write the address, commit, push."""
    course, clone, bare = folder / "course", folder / "clone", folder / "someone/their-fork.git"
    ignore = shutil.ignore_patterns("__pycache__", "full", ".ipynb_checkpoints", "mpcourse-clone")
    for name in KEPT:
        shutil.copytree(ROOT / name, course / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "requirements.txt"):
        shutil.copy(ROOT / name, course)
    git("init", "--quiet", "--initial-branch=main", cwd=course)
    git("add", ".", cwd=course)
    git("commit", "--quiet", "-m", "all", cwd=course)
    git("clone", "--quiet", "--bare", course, bare, cwd=folder)
    here = {**os.environ, **with_address_here(bare)}
    git("clone", "--quiet", ADDRESS, clone, cwd=folder, environment=here)
    run = subprocess.run(
        [sys.executable, "-m", "mpcourse.commands.pages", "--address"],
        cwd=clone,
        env={**here, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    git("commit", "--quiet", "--all", "-m", "Our address", cwd=clone)
    git("push", "--quiet", "origin", "main", cwd=clone, environment=here)
    return Fork(bare, clone, run.stdout)
