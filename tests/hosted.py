"""Colab and Kaggle as they are, as far as a machine without a network can lay them out.

Their kernel, their ipywidgets and their variables stand in an environment of their own, before the
packages of the running one: torch is the one that was there. An empty folder holds one page alone.
"""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from mpcourse.commands.clean_copies import tags_of
from mpcourse.commands.pages import read

GB = 2**30
MEMORY_LIMIT = 12 * GB
CELL_TIMEOUT_S = 600
CLONE = "mpcourse-clone"
KERNEL = (  # both places have it: Kaggle's image starts from Colab's
    "ipython==7.34.0",
    "ipykernel==6.17.1",
    "traitlets==5.7.1",
    *("backcall==0.2.0", "decorator==4.4.2", "ipython-genutils==0.2.0"),
    *("nest-asyncio==1.6.0", "pickleshare==0.7.5"),
)
# Holds the kernel to two cores; takes from root, too, the right to write what is read-only.
START = """
import ctypes, os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])"""
PACKAGES = """
import importlib.metadata
print(*sorted(f"{d.metadata['Name']} {d.version}" for d in importlib.metadata.distributions()))"""
IMPORTS = "import ipywidgets, matplotlib.pyplot, mpcourse, torch, torchvision"
WHICH = "print(torch.__version__, torch.__file__, ipywidgets.__version__, mpcourse.__file__)"
NOT_THERE = ("PYTHONPATH", "MPCOURSE_REPOSITORY", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Place:
    """What makes one of the services different from a machine at home."""

    name: str
    folder: str
    ipywidgets: str
    variables: dict[str, str]
    modules: tuple[str, ...] = ()


COLAB = Place(
    "colab",
    "content",
    "7.7.1",
    {"COLAB_RELEASE_TAG": "release-colab", "COLAB_GPU": ""},
    ("google/colab",),
)
KAGGLE = Place(
    "kaggle",
    "kaggle/working",
    "8.1.5",
    {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "MKL_THREADING_LAYER": "GNU"},
)


def make_environment(place: Place, folder: Path) -> Path:
    """Make an environment whose own packages come before those of the running one."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    # A line in a .pth file adds a folder, but not what that folder's own .pth files add: the
    # course itself, installed for the tests, stays out.
    lines = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    for module in place.modules:
        (packages / module).mkdir(parents=True)
        (packages / module / "__init__.py").touch()
    lines |= {f"import {module.replace('/', '.')}": None for module in place.modules}
    (packages / "place.pth").write_text("\n".join(lines), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "-q"]
    wanted = [*KERNEL, f"ipywidgets=={place.ipywidgets}"]
    subprocess.run([*pip, *wanted], check=True, capture_output=True, text=True, timeout=600)
    return python


def installed(python: Path) -> str:
    """Names and versions of all packages that this Python sees."""
    environment = {k: v for k, v in os.environ.items() if k not in NOT_THERE}
    command = [python, "-c", PACKAGES]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return run.stdout


IMPORT_AND_SAY = "import torch; print(open('/proc/self/smaps_rollup').read())"


def held(text: str) -> tuple[int, int]:
    """Bytes of a process, shared ones by halves, thirds ...; and those that are no file's."""
    fields = (line.split() for line in text.strip().splitlines()[1:])
    sizes = {name: int(kilobytes) * 1024 for name, kilobytes, *_ in fields}
    return sizes["Pss:"], sizes["Pss_Anon:"] + sizes["Pss_Shmem:"]


class MemoryWatch(threading.Thread):
    """Adds up what a process, which has made its imports, and all its children hold.

    Attributes:
        peak: The most that they held at once, in bytes.
        growth: The most that they held at once beyond what imports take in each; libraries and
            other files left out.
    """

    def __init__(self, pid: int, python: Path) -> None:
        super().__init__(daemon=True)
        self.peak = self.growth = 0
        self._root, self._ended = psutil.Process(pid), threading.Event()
        command = [python, "-c", IMPORT_AND_SAY]  # a CPU build of torch takes half as many bytes
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        self._child_imports = held(run.stdout)[1]
        self._imports = {pid: self._read(pid)[1]}

    def _read(self, pid: int) -> tuple[int, int]:
        return held(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8"))

    def run(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while not self._ended.wait(0.25):
                self._look()

    def _look(self) -> None:
        peak = growth = 0
        for process in [self._root, *self._root.children(recursive=True)]:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                everything, own = self._read(process.pid)
                peak += everything
                growth += max(0, own - self._imports.get(process.pid, self._child_imports))
        self.peak, self.growth = max(self.peak, peak), max(self.growth, growth)

    def stop(self) -> None:
        self._ended.set()
        self.join()


@dataclass
class Run:
    """What a page left behind in a place."""

    notebook: NotebookNode
    which: str = ""  # versions and files of torch, ipywidgets and the course in the kernel
    widgets: set[str] = field(default_factory=set)  # ids of the models that ipywidgets made
    peak: int = 0  # bytes, the most that the kernel and its processes held
    growth: int = 0  # bytes after their imports, files left out
    seconds: float = 0.0
    changed: str = ""  # what the page wrote into its clone of the course, as git says it

    def outputs(self) -> list[NotebookNode]:
        return [output for cell in self.notebook.cells for output in cell.get("outputs", [])]

    def errors(self) -> list[str]:
        """What went wrong in cells where nothing should, and all that went to stderr."""
        found = []
        for position, cell in enumerate(self.notebook.cells, start=1):
            for output in cell.get("outputs", []):
                if output.output_type == "error" and "raises-exception" not in tags_of(cell):
                    found.append(f"cell {position}: {output.ename}: {output.evalue}")
                if output.get("name") == "stderr":
                    found.append(f"cell {position}: stderr: {output.text}")
        return found


def run_page(page: Path, place: Place, python: Path, *, folder: Path, git: dict[str, str]) -> Run:
    """Run a page with nothing beside it, the way a learner does who clicks on a badge.

    After the bootstrap cell the course's data is made read-only; two cells of the test's own are
    added, there and at the end.
    """
    working = folder / place.folder
    working.mkdir(parents=True, exist_ok=True)
    shutil.copy(page, working)
    notebook = read(page)
    [position] = [at for at, cell in enumerate(notebook.cells) if "bootstrap" in tags_of(cell)]
    notebook.cells[position].id = "the-bootstrap"
    notebook.cells.insert(position + 1, new_code_cell(IMPORTS, id="the-imports"))
    notebook.cells.append(new_code_cell(f"{IMPORTS}\n{WHICH}", id="the-end"))
    client = NotebookClient(
        notebook,
        km=_kernel(folder, python),
        timeout=CELL_TIMEOUT_S,
        allow_errors=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(working)}},
    )
    run, start = Run(notebook), time.perf_counter()
    environment = {k: v for k, v in os.environ.items() if k not in NOT_THERE}
    environment |= git | place.variables | _own_folders(folder)
    with client.setup_kernel(cleanup_kc=True, env=environment):
        for position, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                client.execute_cell(cell, position)
            if cell.id == "the-bootstrap":
                _make_read_only(working / CLONE / "data")
            if cell.id == "the-imports":
                watch = MemoryWatch(client.km.provisioner.pid, python)
                watch.start()
        watch.stop()
        run.widgets = set(client.widget_state)
    run.seconds = time.perf_counter() - start
    run.peak, run.growth = watch.peak, watch.growth
    run.which = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
    status = ["git", "status", "--porcelain", "--untracked-files=all"]
    run.changed = subprocess.check_output(status, cwd=working / CLONE, text=True)
    return run


def _kernel(folder: Path, python: Path) -> AsyncKernelManager:
    launch = [sys.executable, "-c", START, str(python), "-m", "ipykernel_launcher", "-f"]
    specs = KernelSpecManager(kernel_dirs=[str(folder / "kernels")], ensure_native_kernel=False)
    (folder / "kernels/place").mkdir(parents=True)
    spec = {"argv": [*launch, "{connection_file}"], "display_name": "place", "language": "python"}
    (folder / "kernels/place/kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return AsyncKernelManager(kernel_name="place", kernel_spec_manager=specs)


def _own_folders(folder: Path) -> dict[str, str]:
    """IPython's settings as both places have them: pictures go into the page."""
    settings = folder / "ipython/profile_default/ipython_kernel_config.py"
    settings.parent.mkdir(parents=True)
    settings.write_text('c.IPKernelApp.matplotlib = "inline"\n', encoding="utf-8")
    return {"IPYTHONDIR": str(folder / "ipython")}


def _make_read_only(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
