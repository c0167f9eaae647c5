"""The environment of the course: made in the clone when absent, mended when the course made it.

Behind `python -m mpcourse lab`, `test` and `pages` (page `start_here`). Standard library only: it
runs on a bare Python, before anything is installed. Source: the documentation of `venv` and pip.

Nothing is deleted or installed in an environment that the course did not make for this clone: a
link, one of uv's or conda's, that of another clone. It is used as it is, or named and left alone.
"""

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
from typing import BinaryIO

from mpcourse.commands.shell import call, last_lines, locked

ROOT = Path(__file__).resolve().parents[2]
COURSE = ("requirements.txt",)
TESTS = (*COURSE, "tests/requirements.txt")
SITE = (*COURSE, "requirements-site.txt")
NEEDED_GB = 7 if sys.platform == "linux" else 2  # torch for Linux brings CUDA along
STAMP = "mpcourse.json"  # in an environment that the course made: for which clone
LOG = "mpcourse.log"  # beside it: what venv or pip said last

# Runs inside the environment. pip writes INSTALLER last of a package's files, so a package without
# it is one in whose middle pip was stopped; pip itself takes such a package for installed.
PROBE = """
import importlib.metadata, importlib.util, json, pathlib, platform, sys, sysconfig
def look(requirement):
    try:
        try:
            from packaging.requirements import Requirement
        except ImportError:
            from pip._vendor.packaging.requirements import Requirement
        wanted = Requirement(requirement)
        found = importlib.metadata.version(wanted.name)
        return "met" if wanted.specifier.contains(found, prereleases=True) else "other"
    except Exception:  # no such package, or one that is damaged
        return "absent"
states = {requirement: look(requirement) for requirement in sys.argv[1:]}
packages = pathlib.Path(sysconfig.get_path("purelib")).glob("*.dist-info")
print(json.dumps({
    "version": platform.python_version(),
    "is_supported": sys.version_info >= (3, 11),
    "has_pip": importlib.util.find_spec("pip") is not None,
    "half_installed": [p.stem for p in packages if not (p / "INSTALLER").exists()],
    "missing": [each for each in states if states[each] != "met"],
    "absent": [each for each in states if states[each] == "absent"],
}))
"""

NO_ENSUREPIP = """this Python cannot make environments: its module ensurepip is missing.
On Debian and Ubuntu it is a package of its own: sudo apt install python3-venv
(for a Python beside the system's own: python{0}.{1}-venv). Then type the same command again."""

NO_VENV = """{folder} could not be made: {why}.
Look whether the disk is full ({free_gb:.1f} GB are free), whether you may write there, and whether
a program still uses the folder. Then delete it and type the same command again. --here does
without it, in an environment of your own."""

NO_INSTALL = """pip ended with {why}; its last lines above say why, {log} has all of them.
- "No space left on device": the course takes about {needed_gb} GB in {folder}
  and, while it installs, as much again in {temporary} and pip's cache; {free_gb:.1f} GB are free.
  Free some, or let TMPDIR and PIP_CACHE_DIR name folders on a larger disk.
- "Retrying", "Connection", "No matching distribution": pip does not reach its package index, or
  that has no torch for this Python ({version}; 3.11 to 3.13 are tested). Check the network; a
  proxy goes into HTTPS_PROXY, an index of your own into PIP_INDEX_URL.
- "externally-managed-environment": leave out --here, or activate an environment of your own.
Then type the same command again: it goes on from what is there."""

LEFT_ALONE = """{folder} will not do: {problem}. It was left alone, for {whose}.
{mend}For an environment of the course's own, {away} and type the same command again."""


class SetupError(Exception):
    """The environment cannot be had; the message says what to do."""


@dataclass(frozen=True)
class Environment:
    """A folder with a Python and packages of its own."""

    root: Path  # the clone, with the requirement files
    folder: Path
    python: Path
    is_active: bool = False  # the user's own choice (--here): packages are added at most

    def ensure(self, files: Sequence[str]) -> None:
        """Make this environment if there is none that can be used; install what it lacks.

        With nothing to do it asks the environment's Python one question and ends. Two processes
        that call it at the same time take turns.
        """
        lock = self.folder / "mpcourse.lock" if self.is_active else self.root / ".venv.lock"
        with locked(lock):
            facts = self.probe(files)
            problem = self.problem(facts)
            if problem:
                facts = self._make(problem, facts, files)
            if facts["missing"]:
                self._install(facts, files)

    def run(self, module: str, *arguments: str) -> int:
        """Run a module by this environment's Python; an interrupt leaves no traceback."""
        return self._call("mpcourse.commands", module, *arguments)

    def _call(self, module: str, *arguments: str, log: BinaryIO | None = None) -> int:
        """Run a module in the clone, as if the environment were active.

        So `!pip`, `!torchrun` or a terminal in JupyterLab use this environment, not the machine's.
        """
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        env = {**os.environ, "PATH": path}
        if not self.is_active:
            # A user's setting of pip's --user would fail in here, or install elsewhere.
            env |= {"VIRTUAL_ENV": str(self.folder), "PIP_USER": "0"}
            env.pop("PYTHONHOME", None)
        return call([self.python, "-m", module, *arguments], cwd=self.root, env=env, log=log)

    def probe(self, files: Sequence[str] = ()) -> dict:
        """Ask the environment's Python what `PROBE` asks; empty when it does not answer."""
        requirements = read_requirements(files, self.root)
        # with --here, packages may lie in the user's own folder, which -I does not see
        options = ["-B", "-c", PROBE] if self.is_active else ["-IB", "-c", PROBE]
        command = [self.python, *options, *requirements]
        settings = {"cwd": self.folder, "capture_output": True, "timeout": 60, "check": True}
        try:
            return json.loads(subprocess.run(command, **settings).stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return {}

    def problem(self, facts: dict) -> str:
        """Say why the environment that answered `facts` cannot be used; empty when it can."""
        if self._is_vacant():
            return "there is none yet"
        if not facts:
            return "its Python does not run"
        if not facts["is_supported"]:
            return f"its Python {facts['version']} is too old"
        if self.is_active or not self._is_ours():
            return ""
        if facts["half_installed"]:
            return f"an installation was cut off at {facts['half_installed'][0]}"
        if facts["missing"] and not facts["has_pip"]:
            return "it has no pip"
        if self._clone() != str(self.root) and not self._is_link():
            return "the clone was moved after it was made"
        return ""

    def _clone(self) -> str:
        """The clone that the course made this environment for; empty when it did not make it."""
        try:
            return json.loads((self.folder / STAMP).read_text(encoding="utf-8"))["clone"]
        except (OSError, ValueError, LookupError, TypeError):
            return ""

    def _is_ours(self) -> bool:
        """Whether packages may be added here: it is not another clone's, nor made by others."""
        clone = self._clone()
        is_of_another = clone not in ("", str(self.root)) and Path(clone).exists()
        return not is_of_another and (self.is_active or bool(clone))

    def _is_link(self) -> bool:
        """Whether the folder is elsewhere, through a link or a junction."""
        return self.folder.resolve() != self.folder.parent.resolve() / self.folder.name

    def _is_vacant(self) -> bool:
        """Whether there is nothing yet, or an empty folder, also at the end of a link."""
        if self.folder.is_dir():
            return not any(self.folder.iterdir())
        return not os.path.lexists(self.folder)

    def _make(self, problem: str, facts: dict, files: Sequence[str]) -> dict:
        if not self._is_vacant() and (
            self.is_active or self._is_link() or not (self._is_ours() and self._clone())
        ):
            raise SetupError(self._left_alone(problem, facts, files))
        if importlib.util.find_spec("ensurepip") is None:
            raise SetupError(NO_ENSUREPIP.format(*sys.version_info))
        print(f"Making the environment {self.folder}: {problem}.", flush=True)
        print(f"This happens once; it takes some minutes and {NEEDED_GB} GB.", flush=True)
        # The Python that all environments are made from: an active .venv cannot replace itself.
        base = getattr(sys, "_base_executable", None) or sys.executable
        place = self.folder.resolve()  # venv makes nothing where a link is
        try:
            place.mkdir(parents=True, exist_ok=True)
            for path in place.iterdir():
                if path.name != STAMP:  # it stays to the end: what is half deleted is still ours
                    shutil.rmtree(
                        path
                    ) if path.is_dir() and not path.is_symlink() else path.unlink()
            (place / STAMP).write_text(json.dumps({"clone": str(self.root)}), encoding="utf-8")
            with self._open_log() as log:
                status = call([base, "-m", "venv", place], cwd=self.root, log=log)
        except OSError as error:
            raise SetupError(self._explain(NO_VENV, str(error))) from None
        facts = self.probe(files)
        if status or self.problem(facts):
            print(last_lines(log.name), flush=True)
            raise SetupError(self._explain(NO_VENV, f"exit status {status}, as said above"))
        return facts

    def _install(self, facts: dict, files: Sequence[str]) -> None:
        if not self._is_ours() or not facts["has_pip"]:
            problem = f"it lacks {', '.join(facts['missing'])}"
            raise SetupError(self._left_alone(problem, facts, files))
        with self._open_log() as log:
            print(f"Installing from {' and '.join(files)}; {log.name} has pip's words.", flush=True)
            options = [option for file in files for option in ("-r", file)]
            status = self._call("pip", "install", *options, log=log)
        if status:
            print(last_lines(log.name), flush=True)
            left = self.probe(files)
            if not left or left["absent"]:
                why = f"exit status {status}"
                raise SetupError(self._explain(NO_INSTALL, why, log.name, facts["version"]))
            but = (
                f" but for the versions of {', '.join(left['missing'])}" if left["missing"] else ""
            )
            print(f"pip ended with exit status {status}. All that is needed is there{but}.")

    def _open_log(self) -> BinaryIO:
        try:
            return (self.folder / LOG).open("wb")
        except OSError:  # an environment that only an administrator may write in
            return tempfile.NamedTemporaryFile(prefix="mpcourse-", suffix=".log", delete=False)

    def _left_alone(self, problem: str, facts: dict, files: Sequence[str]) -> str:
        """What to do about an environment that is not ours to mend."""
        clone = self._clone()
        if self._is_link():
            whose, away = f"it is a link to {self.folder.resolve()}", "remove the link"
        elif clone and clone != str(self.root):
            whose, away = f"it belongs to the clone {clone}", "rename it"
        else:
            whose, away = "the course did not make it", "rename it"
        mend = ""
        if facts.get("missing"):
            pip = f'"{self.python}" -m pip install'
            uv = f'uv pip install --python "{self.python}"'
            options = " ".join(f"-r {file}" for file in files)
            mend = f"To add that yourself: {pip if facts['has_pip'] else uv} {options}\n"
        away = "leave out --here" if self.is_active else away
        return LEFT_ALONE.format(
            folder=self.folder, problem=problem, whose=whose, mend=mend, away=away
        )

    def _explain(self, message: str, why: str, log: str = "", version: str = "") -> str:
        return message.format(
            why=why,
            log=log,
            version=version,
            folder=self.folder,
            temporary=tempfile.gettempdir(),
            needed_gb=NEEDED_GB,
            free_gb=shutil.disk_usage(self.root).free / 1e9,
        )


def read_requirements(files: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the requirements in these files of a clone, and in those that they name."""
    found = []
    for file in files:
        try:
            lines = (root / file).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError as error:
            message = f"{error.filename} is missing: start in a clone of the course."
            raise SetupError(message) from None
        for line in (line.split("#")[0].strip() for line in lines):
            if line.startswith("-r "):
                found += read_requirements([str(Path(file).parent / line[3:].strip())], root)
            elif line and not line.startswith("-"):
                found.append(line)
    return found


def find_environment(*, here: bool = False, root: Path = ROOT) -> Environment:
    """Return the environment that the commands use; nothing is made or changed."""
    if here:
        return Environment(root, Path(sys.prefix), Path(sys.executable), is_active=True)
    folder = root / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return Environment(root, folder, python)
