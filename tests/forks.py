"""Someone's fork of the course: a bare repository on this machine that answers to an address."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from mpcourse.commands.setup import ROOT

ADDRESS = "https://github.com/someone/their-fork"
BRANCH = "autumn-26"
FOLDERS = ("mpcourse", "data", "notebooks", "binder")
FILES = ("pyproject.toml", "README.md", "requirements.txt")


def git(*words: object, cwd: Path, environment: dict[str, str] | None = None) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *map(str, words)]
    subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True)


def copy_course(folder: Path, *names: str) -> Path:
    """Copy files and folders of the course, without what running it leaves behind."""
    ignore = shutil.ignore_patterns("__pycache__", "full", ".ipynb_checkpoints", "mpcourse-clone")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def commit_all(folder: Path) -> Path:
    """Make a folder a repository, with everything in its one commit."""
    git("init", "--quiet", "--initial-branch=main", cwd=folder)
    git("add", ".", cwd=folder)
    git("commit", "--quiet", "-m", "all", cwd=folder)
    return folder


class Fork(NamedTuple):
    """A clone of a repository, in which the address was written, and what that command said."""

    clone: Path
    said: str
    environment: dict[str, str]  # with it git fetches from here what it is to fetch from `ADDRESS`


def make_fork(folder: Path) -> Fork:
    """Do what someone does who forks the course: clone, write the address, commit, push."""
    clone, bare = folder / "clone", folder / "someone/their-fork.git"
    course = commit_all(copy_course(folder / "course", *FOLDERS, *FILES))
    git("clone", "--quiet", "--bare", course, bare, cwd=folder)
    instead = {"KEY": f"url.{bare.as_uri()}.insteadOf", "VALUE": ADDRESS}
    git_here = {f"GIT_CONFIG_{name}_0": words for name, words in instead.items()}
    git_here["GIT_CONFIG_COUNT"] = "1"
    here = {**os.environ, **git_here}
    git("clone", "--quiet", ADDRESS, clone, cwd=folder, environment=here)
    git("checkout", "--quiet", "-b", BRANCH, cwd=clone)
    run = subprocess.run(
        [sys.executable, "-m", "mpcourse", "pages", "--here", "--address"],
        cwd=clone,
        env={**here, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    git("commit", "--quiet", "--all", "-m", "Our address", cwd=clone)
    git("push", "--quiet", "--set-upstream", "origin", BRANCH, cwd=clone, environment=here)
    return Fork(clone, run.stdout, git_here)
