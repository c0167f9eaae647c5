"""The environment of the course: made in the clone when absent, mended when broken.

Behind `python -m mpcourse lab`, `test` and `pages` (page `start_here`). Standard library only: it
runs on a bare Python, before anything is installed. Source: the documentation of `venv` and pip.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpcourse.commands.shell import call, locked

ROOT = Path(__file__).resolve().parents[2]
COURSE = ("requirements.txt",)
TESTS = (*COURSE, "tests/requirements.txt")
NEEDED_GB = 7 if sys.platform == "linux" else 2  # torch for Linux brings CUDA along

# Runs inside the environment. pip writes INSTALLER last of a package's files, so a package without
# it is one in whose middle pip was stopped; pip itself takes such a package for installed.
PROBE = """
import importlib.util, json, pathlib, platform, sys, sysconfig
packages = pathlib.Path(sysconfig.get_path("purelib")).glob("*.dist-info")
print(json.dumps({
    "version": platform.python_version(),
    "is_supported": sys.version_info >= (3, 11),
    "has_pip": importlib.util.find_spec("pip") is not None,
    "half_installed": [p.stem for p in packages if not (p / "INSTALLER").exists()],
}))
"""

NO_ENSUREPIP = """this Python cannot make environments: its module ensurepip is missing.
On Debian and Ubuntu it is a package of its own: sudo apt install python3-venv
(for a Python beside the system's own: python{0}.{1}-venv). Then type the same command again."""

NO_VENV = """{folder} could not be made (exit status {status}); the lines above say why.
Look whether the disk is full ({free_gb:.1f} GB are free), whether you may write there, and whether
a program still uses the folder. Then delete it and type the same command again. --here does
without it, in an environment of your own."""

NO_INSTALL = """pip ended with exit status {status}; its last lines above say why.
- "No space left on device": the course takes about {needed_gb} GB in {folder}
  and, while it installs, as much again in {temporary} and pip's cache; {free_gb:.1f} GB are free.
  Free some, or let TMPDIR and PIP_CACHE_DIR name folders on a larger disk.
- "Retrying", "Connection", "No matching distribution": pip does not reach its package index, or
  that has no torch for this Python ({version}; 3.11 to 3.13 are tested). Check the network; a
  proxy goes into HTTPS_PROXY, an index of your own into PIP_INDEX_URL.
- "externally-managed-environment": leave out --here, or activate an environment of your own.
Then type the same command again: it goes on from what is there."""


class SetupError(Exception):
    """The environment cannot be had; the message says what to do."""


@dataclass(frozen=True)
class Environment:
    """A folder with a Python and packages of its own."""

    root: Path  # the clone, with pyproject.toml and the requirement files
    folder: Path
    python: Path
    is_ours: bool  # it may be made, and made anew; otherwise packages are added at most

    def ensure(self, files: Sequence[str]) -> None:
        """Make this environment if it cannot be used; install if a requirement file changed.

        With nothing to do it asks the environment's Python one question and ends. Two processes
        that call it at the same time take turns.
        """
        lock = self.root / ".venv.lock" if self.is_ours else self.folder / "mpcourse.lock"
        with locked(lock):
            facts = self.probe()
            problem = self.problem(facts)
            if problem and not self.is_ours:
                raise SetupError(f"{self.python} cannot be used: {problem}. Leave out --here.")
            if problem:
                facts = self._make(problem)
            wanted = {file: self._fingerprint(file, facts["version"]) for file in files}
            if any(_read(self._stamp(file)) != wanted[file] for file in files):
                self._install(wanted, facts["version"])

    def forget(self) -> None:
        """Let the next `ensure` install again, whatever it finds."""
        with contextlib.suppress(OSError):  # in a folder of someone else's there may be no stamps
            for stamp in self.folder.glob("mpcourse-*.json"):
                stamp.unlink()

    def run(self, *arguments: str) -> int:
        """Run this environment's Python in the clone, as if the environment were active.

        So `!pip`, `!torchrun` or a terminal in JupyterLab use this environment, not the machine's.
        """
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        env = {**os.environ, "PATH": path}
        if self.is_ours:
            # A user's setting of pip's --user would fail in here, or install elsewhere.
            env |= {"VIRTUAL_ENV": str(self.folder), "PIP_USER": "0"}
            env.pop("PYTHONHOME", None)
        return call([self.python, *arguments], cwd=self.root, env=env)

    def probe(self) -> dict:
        """Ask the environment's Python what `PROBE` asks; empty when it does not answer."""
        command = [self.python, "-I", "-c", PROBE]
        try:
            answer = subprocess.run(command, capture_output=True, timeout=60, check=True)
            return json.loads(answer.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return {}

    def problem(self, facts: dict) -> str:
        """Say why the environment that answered `facts` cannot be used; empty when it can."""
        if not self.folder.exists():
            return "there is none yet"
        if not facts:
            return "its Python does not run"
        if not facts["is_supported"]:
            return f"its Python {facts['version']} is too old"
        if not facts["has_pip"]:
            return "it has no pip"
        if self.is_ours and facts["half_installed"]:
            return f"an installation was cut off at {facts['half_installed'][0]}"
        clones = {_read(stamp).get("clone") for stamp in self.folder.glob("mpcourse-*.json")}
        if self.is_ours and clones - {str(self.root), None}:
            return "the clone was moved after it was made"
        return ""

    def _make(self, problem: str) -> dict:
        if importlib.util.find_spec("ensurepip") is None:
            raise SetupError(NO_ENSUREPIP.format(*sys.version_info))
        print(f"Making the environment {self.folder}: {problem}.", flush=True)
        print(f"This happens once; it takes some minutes and {NEEDED_GB} GB.", flush=True)
        # The Python that all environments are made from: an active .venv cannot replace itself.
        base = getattr(sys, "_base_executable", None) or sys.executable
        status = call([base, "-m", "venv", "--clear", self.folder], cwd=self.root)
        facts = self.probe()
        if status or self.problem(facts):
            raise SetupError(self._explain(NO_VENV, status))
        return facts

    def _install(self, wanted: dict[str, dict[str, str]], version: str) -> None:
        current = [file for file in wanted if _read(self._stamp(file)) == wanted[file]]
        self.forget()  # nothing holds while pip works
        print(f"Installing from {' and '.join(wanted)}.", flush=True)
        options = [option for file in wanted for option in ("-r", file)]
        status = self.run("-m", "pip", "install", *options)
        for file in current if status else wanted:
            with contextlib.suppress(OSError):  # not ours to write in: pip looks next time
                self._stamp(file).write_text(json.dumps(wanted[file]), encoding="utf-8")
        if status:
            raise SetupError(self._explain(NO_INSTALL, status, version))

    def _explain(self, message: str, status: int, version: str = "") -> str:
        return message.format(
            status=status,
            version=version,
            folder=self.folder,
            temporary=tempfile.gettempdir(),
            needed_gb=NEEDED_GB,
            free_gb=shutil.disk_usage(self.root).free / 1e9,
        )

    def _stamp(self, file: str) -> Path:
        """Return the file that says, only after success, from what `file` was installed."""
        return self.folder / f"mpcourse-{file.replace('/', '-')}.json"

    def _fingerprint(self, file: str, version: str) -> dict[str, str]:
        """Return all that an installation of `file` depends on."""
        try:
            content = b"".join((self.root / name).read_bytes() for name in (file, "pyproject.toml"))
        except FileNotFoundError as error:
            message = f"{error.filename} is missing: start in a clone of the course."
            raise SetupError(message) from None
        digest = hashlib.sha256(content).hexdigest()
        return {"clone": str(self.root), "python": version, "content": digest}


def find_environment(*, here: bool = False, root: Path = ROOT) -> Environment:
    """Return the environment that the commands use; nothing is made or changed."""
    if here:
        return Environment(root, Path(sys.prefix), Path(sys.executable), is_ours=False)
    folder = root / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return Environment(root, folder, python, is_ours=True)


def _read(stamp: Path) -> dict[str, str]:
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
