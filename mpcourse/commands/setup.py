"""The environment of the course: made in the clone when absent, mended when the course made it.

Page `start_here`. Standard library only. Source: the documentation of `venv`, pip, `man flock`.

Nothing is deleted or installed in an environment that the course did not make for this clone: a
link, one of uv's or conda's, that of another clone. It is used as it is, or named and left alone.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

ROOT = Path(__file__).resolve().parents[2]
COURSE = ("requirements.txt",)
TESTS = (*COURSE, "tests/requirements.txt")
SITE = (*COURSE, "requirements-site.txt")
NEEDED_GB = 7 if sys.platform == "linux" else 2  # torch for Linux brings CUDA along
LAST_LINES = 20  # of what pip said, when it fails
STAMP = "mpcourse.json"  # in an environment that the course made: for which clone

# Runs inside the environment. pip writes INSTALLER last of a package's files, so a package without
# it is one in whose middle pip was stopped; pip itself takes such a package for installed.
PROBE = """
import importlib.metadata, importlib.util, json, pathlib, sys, sysconfig
facts = {"is_supported": sys.version_info >= (3, 11), "missing": [], "absent": []}
facts["has_pip"] = importlib.util.find_spec("pip") is not None
packages = pathlib.Path(sysconfig.get_path("purelib")).glob("*.dist-info")
facts["half_installed"] = [p.stem for p in packages if not (p / "INSTALLER").exists()]
for requirement in sys.argv[1:]:
    try:
        try:
            from packaging.requirements import Requirement
        except ImportError:
            from pip._vendor.packaging.requirements import Requirement
        wanted = Requirement(requirement)
        found = importlib.metadata.version(wanted.name)
        facts["missing"] += [requirement] * (not wanted.specifier.contains(found, prereleases=True))
    except Exception:  # no such package, or one that is damaged
        facts["missing"].append(requirement)
        facts["absent"].append(requirement)
print(json.dumps(facts))
"""


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
        """Make this environment if there is none that can be used; install what it lacks."""
        try:
            with locked(self.root / ".venv.lock"):
                facts = self.probe(files)
                if problem := self.problem(facts):
                    facts = self._make(problem, files)
                if facts["missing"]:
                    self._install(facts, files)
        except OSError as error:
            here = "--here does without .venv, in an environment of your own"
            raise SetupError(f"{error}: is the disk full? May you write there? {here}.") from None

    def run(self, module: str, *arguments: str) -> int:
        """Run a module in the clone, as if the environment were active: it takes our place.

        So `!pip`, `!torchrun` or a terminal in JupyterLab use this environment, not the machine's.
        """
        words = "mpcourse.commands", module, *arguments
        if os.name != "nt":
            os.chdir(self.root)
            os.execve(self.python, [self.python, "-m", *words], self._variables())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the module hears it, too, and ends
        command = [self.python, "-m", *words]
        return subprocess.call(command, cwd=self.root, env=self._variables())

    def _variables(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        env = {**os.environ, "PATH": path}
        if not self.is_active:
            # A user's setting of pip's --user would fail in here, or install elsewhere.
            env |= {"VIRTUAL_ENV": str(self.folder), "PIP_USER": "0"}
            env.pop("PYTHONHOME", None)
        return env

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
            return "its Python is too old"
        if self.is_active or not self._is_ours():
            return ""
        if facts["half_installed"]:
            return f"an installation was cut off at {facts['half_installed'][0]}"
        return "it has no pip" if facts["missing"] and not facts["has_pip"] else ""

    def _is_ours(self) -> bool:
        """Whether the course made it, for this clone or one that is there no more (moved)."""
        try:
            clone = json.loads((self.folder / STAMP).read_text(encoding="utf-8"))["clone"]
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return clone == str(self.root) or not Path(clone).exists()

    def _is_vacant(self) -> bool:
        """Whether there is nothing yet, or an empty folder, also at the end of a link."""
        is_folder = self.folder.is_dir()
        return not (any(self.folder.iterdir()) if is_folder else os.path.lexists(self.folder))

    def _make(self, problem: str, files: Sequence[str]) -> dict:
        place = self.folder.resolve()  # venv makes nothing where a link is
        is_link = place != self.folder.parent.resolve() / self.folder.name
        if not self._is_vacant() and (self.is_active or is_link or not self._is_ours()):
            raise self._left_alone(problem, files)
        print(f"Making the environment {self.folder}: {problem}.", flush=True)
        print(f"This happens once; it takes some minutes and {NEEDED_GB} GB.", flush=True)
        place.mkdir(parents=True, exist_ok=True)
        for path in place.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != STAMP:  # it stays: what is half deleted is still ours
                path.unlink()
        (place / STAMP).write_text(json.dumps({"clone": str(self.root)}), encoding="utf-8")
        # The Python that all environments are made from: an active .venv cannot replace itself.
        base = getattr(sys, "_base_executable", None) or sys.executable
        status = subprocess.call([base, "-m", "venv", place], cwd=self.root)
        facts = self.probe(files)
        if status or self.problem(facts):
            raise self._trouble("venv", status)
        return facts

    def _install(self, facts: dict, files: Sequence[str]) -> None:
        if not facts["has_pip"] or not (self.is_active or self._is_ours()):
            raise self._left_alone(f"it lacks {', '.join(facts['missing'])}", files)
        print(f"Installing from {' and '.join(files)}.", flush=True)
        options = [option for file in files for option in ("-r", file)]
        command = [self.python, "-m", "pip", "install", *options]
        env = {**self._variables(), "PIP_NO_INPUT": "1"}  # nobody would see a question
        status = call_in_one_line(command, cwd=self.root, env=env)
        if status and self.probe(files).get("absent", files):
            raise self._trouble("pip", status)
        if status:  # without a network, say, one goes on with the versions that are there
            print(f"pip ended with exit status {status}. All packages are there: going on.")

    def _left_alone(self, problem: str, files: Sequence[str]) -> SetupError:
        options = " ".join(f"-r {file}" for file in files)
        return SetupError(f"""{self.folder} will not do: {problem}.
It was left alone: it is a link, or belongs to another clone, or the course did not make it. To add
what it lacks, if that is all: "{self.python}" -m pip install {options}
(with uv: uv pip install --python "{self.python}" {options}).
For an environment of the course's own, rename it, remove the link or leave out --here, and type the
same command again.""")

    def _trouble(self, what: str, status: int) -> SetupError:
        free_gb = shutil.disk_usage(self.root).free / 1e9
        return SetupError(f"""{what} ended with exit status {status}; above is what it said.
- "No space left on device": the course takes about {NEEDED_GB} GB in {self.folder}
  and, while it installs, as much again in {tempfile.gettempdir()} and pip's cache.
  {free_gb:.1f} GB are free; TMPDIR and PIP_CACHE_DIR may name folders on a larger disk.
- "Connection", "No matching distribution": check the network; a proxy goes into HTTPS_PROXY, an
  index of your own into PIP_INDEX_URL. torch is there for Python 3.11 to 3.13.
- "externally-managed-environment": leave out --here, or activate an environment of your own.
Then type the same command again: it goes on from what is there.""")


def call_in_one_line(
    command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None
) -> int:
    """Run a command whose newest line a terminal shows; the last ones are printed if it fails."""
    width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else 0
    last: deque[str] = deque(maxlen=LAST_LINES)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(
        command, cwd=cwd, env=env, text=True, errors="replace", **pipes
    ) as process:
        for line in process.stdout:
            last.append(line)
            print(f"{line.strip()[:width]:{width}}", end="\r" * bool(width), flush=True)
    print(" " * width, end="\r" * bool(width), flush=True)
    print("".join(last) if process.returncode else "", end="", flush=True)
    return process.returncode


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, which the system takes back when a process ends, while the block runs.

    There is none where it cannot be written, nor on Windows, where a file in use is safe anyway.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("a"))
            try:
                fcntl and fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"Another start is at work (it holds {path}): waiting for it.", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_requirements(files: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the requirements in these files of a clone, and in those that they name."""
    found = []
    for path in (root / file for file in files):
        if not path.is_file():
            raise SetupError(f"{path} is missing: start in a clone of the course.")
        lines = [line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
        others = [line.removeprefix("-r ") for line in lines if line.startswith("-r ")]
        found += read_requirements(others, path.parent)
        found += [line for line in lines if line and not line.startswith("-")]
    return found


def find_environment(*, here: bool = False, root: Path = ROOT) -> Environment:
    """Return the environment that the commands use; nothing is made or changed."""
    if here:
        return Environment(root, Path(sys.prefix), Path(sys.executable), is_active=True)
    folder = root / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return Environment(root, folder, python)
