"""A learner's process from outside: it gets a task and limits, and is ended as a whole.

What it sees is decided in `inside`, which runs there first. Source: the documentation of psutil.
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import psutil

from mpcourse.commands.grading import inside

GIB = 2**30
POLL_S = 0.1
MOST_ANSWERED = 2**25  # bytes
FILES_GIB = 1.0  # in the folders that it may write to; they are in memory
FULL = 95  # percent of the machine's memory: a file without a name counts in no process
DATA_GIB = 2.0  # that Python and torch take of what RLIMIT_DATA counts, before any work
PATH = f"{sys.prefix}/bin:/usr/bin:/bin"  # of a learner's process, and of what starts it
MOST = {"CORE": 0, "NPROC": 1024, "NOFILE": 1024, "FSIZE": GIB // 4}
RUN = ("-P", "-m", "mpcourse.commands.grading.learner")
seats = itertools.count(os.getpid())
stopping = threading.Event()  # once set, every learner's process is ended


class Limits(NamedTuple):
    """What one notebook may take: seconds, and GiB over all its processes."""

    time_s: float
    memory_gib: float


def run(
    course: Path, task: Any, limits: Limits, *, closed: bool, command: tuple[str, ...] = RUN
) -> tuple[dict[str, Any], str]:
    """Let a learner's process do a task: what it answered, by keys, and why there is no more."""
    most = {**MOST, "DATA": int((limits.memory_gib + DATA_GIB) * GIB)}
    with (
        tempfile.TemporaryDirectory(prefix="graded-", ignore_cleanup_errors=True) as room,
        tempfile.TemporaryFile() as told,
        tempfile.TemporaryFile() as answered,
    ):
        told.write(json.dumps([most, task]).encode())
        told.seek(0)
        start, settings = _start(course, room, [sys.executable, *command], closed)
        pipes = {"stdin": told, "stdout": answered, "stderr": subprocess.DEVNULL}
        # in a session of its own: Ctrl-C is for whoever waits, who then ends this
        process = psutil.Popen(start, **pipes, **settings, start_new_session=True)
        family: set[psutil.Process] = {process}
        try:
            why = _watched(process, answered, limits, family)
        finally:
            for each in family:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            process.wait()
        answered.seek(0)
        answers = {}
        for line in answered.read(MOST_ANSWERED).splitlines():
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # whoever wrote it
                key, found = json.loads(line)
                answers[key] = found
    return answers, why


def _start(course: Path, room: str, command: list[str], closed: bool) -> tuple[list[str], dict]:
    """The command that becomes the learner's process, its folder and its environment."""
    home = inside.HOME if closed else room
    env = {"HOME": home, "PYTHONPATH": home, "PATH": PATH}
    env |= {"USER": "learner", "MPLBACKEND": "agg", "OMP_WAIT_POLICY": "passive"}
    if not closed:
        shutil.copytree(course, room, dirs_exist_ok=True)
        folder = Path(room, "my_notebooks")
        folder.mkdir()
        return command, {"cwd": folder, "env": {**os.environ, **env, "TMPDIR": room}}
    shown = {path: path for path in (sys.prefix, sys.base_prefix)}
    shown |= {f"{home}/{each.name}": str(each) for each in course.glob("*")}
    # in the place of root a user's number that belongs to nobody, and to no other notebook
    stranger = 0 if os.geteuid() else 61184 + next(seats) % 4000
    start = inside.start([room, shown, FILES_GIB, command, stranger])
    return start, {"cwd": "/", "env": {**env, "TMPDIR": "/tmp"}}


def _watched(process: psutil.Popen, answered: BinaryIO, limits: Limits, family: set) -> str:
    """Wait until the process has ended, or takes too much; returns which of these it was.

    Its family is all that was seen of what it has started; namespaces end the rest with it.
    """
    end = time.monotonic() + limits.time_s
    while not stopping.wait(POLL_S):
        if process.poll() is not None:
            return "its process has ended"
        if time.monotonic() > end:
            return f"the notebook's {limits.time_s:g} s were over"
        if os.fstat(answered.fileno()).st_size > MOST_ANSWERED:
            return "its answers were too long"
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            family.update(process.children(recursive=True))
        taken = 0  # what several share counts in each
        for each in family:
            with contextlib.suppress(psutil.Error):
                taken += each.memory_info().rss
        if taken > limits.memory_gib * GIB:
            return f"its processes took more than {limits.memory_gib:g} GB of memory"
        if psutil.virtual_memory().percent > FULL:
            return "this machine's memory was full"
    return "grading was stopped"


@functools.cache
def can_close() -> bool:
    """Whether this machine gives namespaces, as a process in them finds out."""
    has_programs = sys.platform == "linux" and shutil.which("setpriv", path=PATH)
    probe = {"closed": True, "command": ("-c", "print('[0, 1]')")}
    return bool(has_programs and run(Path("/nowhere"), [], Limits(60, 1), **probe)[0])
