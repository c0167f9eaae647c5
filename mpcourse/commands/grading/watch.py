"""Start the grading of one notebook, watch its time and memory, leave no process behind.

Behind `python -m mpcourse grade`. Source: the documentation of psutil.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from mpcourse.commands.grading.network import MARK, closed_network
from mpcourse.commands.grading.submissions import Submission, clean
from mpcourse.commands.setup import ROOT

POLL_S = 0.25
START_LIMIT_S = 240.0  # for a kernel that imports the course, on a busy machine
GIB = 2**30
GRADED = "MPCOURSE_GRADED"  # environment: all that a page starts inherits it
CLONE = ("mpcourse", "data", "pyproject.toml")  # a copy of these: cells cannot change the course


class Limits(NamedTuple):
    """What one page may take: seconds, and GiB over all its processes."""

    time_s: float
    memory_gib: float


@dataclass
class Record:
    """What became of one notebook."""

    learner: str
    file: str  # its place in the folder
    page: str  # the page's file; empty when it is of no page of the course
    judged: dict[str, tuple[str, str]] = field(default_factory=dict)  # exercise -> state, words
    notes: list[str] = field(default_factory=list)  # what an instructor should know besides
    stopped: str = ""  # why not all was judged
    seconds: float = 0.0
    key: str = ""  # digest of copy and course: with the same one, nothing would come out otherwise
    limits: tuple[float, float] = (0.0, 0.0)

    def holds_for(self, key: str, limits: Limits) -> bool:
        """Whether grading again would say the same: what limits have cut short may not."""
        return self.key == key and (not self.stopped or tuple(self.limits) == limits)

    as_dict = asdict


class Watched:
    """The process that grades one notebook, and all that descend from it."""

    def __init__(self, submission: Submission, folder: Path, limits: Limits):
        self._limits = limits
        self._name = uuid.uuid4().hex
        self.found: list[dict] = []
        self.at = "starts"
        _lay_out(folder / "clone")
        arguments = [submission.path.resolve(), submission.page, folder, limits.time_s]
        self._said = (folder / "said.txt").open("w+")
        self._start = time.monotonic()
        self._process = subprocess.Popen(
            [
                *closed_network(),
                *(
                    sys.executable,
                    "-m",
                    "mpcourse.commands.grading.graded_run",
                    *map(str, arguments),
                ),
            ],
            cwd=ROOT,
            env={**os.environ, GRADED: self._name, MARK: "1" if closed_network() else "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C is for whoever watches, which then ends this
            text=True,
        )
        self._family = {psutil.Process(self._process.pid)}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def _read(self) -> None:
        for line in self._process.stdout:
            try:
                found = json.loads(line)
            except ValueError:  # cut off, with the process
                continue
            self.at = found.get("at", self.at)
            self.found.append(found)

    def wait(self, stop: threading.Event, show: Callable[[str], None]) -> str:
        """Watch until it has ended or has to; return why it had to, empty when it ended."""
        while self._process.poll() is None and not stop.wait(POLL_S):
            show(f"{self.at}, {self.seconds:.0f} s")
            used = self._memory_gib()
            if used > self._limits.memory_gib:
                return f"took more than {self._limits.memory_gib:g} GB of memory at {self.at}"
            if self.seconds > self._limits.time_s + START_LIMIT_S:
                return f"the page's {self._limits.time_s:g} s were over at {self.at}"
        return ""

    def _memory_gib(self) -> float:
        """Of all processes together; what several share counts once, where that can be known."""
        family = self._alive()
        used = sum(_bytes(process, "memory_info", "rss") for process in family)
        if used > self._limits.memory_gib * GIB:  # counts shared memory often, but takes no time
            used = sum(
                _bytes(process, "memory_full_info", "pss", "uss", "rss") for process in family
            )
        return used / GIB

    def _alive(self) -> list[psutil.Process]:
        """All descendants that were ever seen and still run."""
        self._family = {process for process in self._family if process.is_running()}
        parents = {process.pid for process in self._family}
        for process in psutil.process_iter():  # in the order of their numbers
            with contextlib.suppress(psutil.Error):
                if process.ppid() in parents and process.pid not in parents:
                    self._family.add(process)
                    parents.add(process.pid)
        return list(self._family)

    def end(self) -> str:
        """End all of it at once; return the last line that the process complained with."""
        for process in self._alive():
            _kill(process)
        for process in psutil.process_iter():  # those whose parents were gone before they were seen
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(GRADED) == self._name:
                    _kill(process)
        self._process.wait()
        self._process.stdin.close()
        self._reader.join()
        self._process.stdout.close()
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        self._said.close()
        return lines[-1] if lines else ""


def _bytes(process: psutil.Process, ask: str, *names: str) -> int:
    """The first of the figures that this system knows; 0 when the process has ended."""
    with contextlib.suppress(psutil.Error):
        memory = getattr(process, ask)()
        return next(getattr(memory, name) for name in names if hasattr(memory, name))
    return 0


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


def _lay_out(clone: Path) -> None:
    """A copy of what the pages need of the course."""
    clone.mkdir()
    for name in CLONE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, clone / name)
        else:
            shutil.copy2(ROOT / name, clone / name)


def grade_one(
    submission: Submission,
    exercises: list[str],
    limits: Limits,
    stop: threading.Event,
    show: Callable[[str], None],
) -> Record | None:
    """Grade one notebook of a page; None when `stop` was set. `show` gets how far it is."""
    record = Record(submission.learner, submission.file, submission.page.name, limits=tuple(limits))
    with tempfile.TemporaryDirectory(prefix="graded-", ignore_cleanup_errors=True) as folder:
        watched = Watched(submission, Path(folder), limits)
        try:
            why = watched.wait(stop, show)
        finally:
            complaint = watched.end()
    if stop.is_set():
        return None
    record.seconds = round(watched.seconds, 1)
    ended = [found["end"] for found in watched.found if "end" in found]
    record.stopped = why or (ended[0] if ended else f"the grading process ended: {complaint}")
    record.stopped = clean(record.stopped)
    record.notes = list(dict.fromkeys(clean(f["note"]) for f in watched.found if "note" in f))
    left = ("not judged", record.stopped)
    judged = {f["exercise"]: f for f in watched.found if "exercise" in f}
    for name in exercises:
        found = judged.get(name)
        record.judged[name] = (found["state"], clean(found["message"])) if found else left
    return record
