"""A learner's process from outside: asked and answered by lines, within limits, ended as a whole.

What it sees is decided in `inside`, which runs there first. Source: the documentation of psutil.
"""

import contextlib
import functools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from mpcourse.commands.grading import inside

GIB = 2**30
POLL_S = 0.1
LONGEST_ANSWER = 2**25  # bytes
START_LIMIT_S, CASE_LIMIT_S = 120.0, 30.0
FILES_GIB = 1.0  # in the folders that it may write to; they are in memory
DATA_GIB = 2.0  # that Python and torch take of what RLIMIT_DATA counts, before any work
MOST = {"CORE": 0, "NPROC": 1024, "NOFILE": 1024, "FSIZE": GIB // 4}
RUN = ("-P", "-m", "mpcourse.commands.grading.learner")
PROBE = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname(), timeout=10).close()
print('["ready"]', flush=True)
"""


class Limits(NamedTuple):
    """What one notebook may take: seconds, and GiB over all its processes."""

    time_s: float
    memory_gib: float


class NotJudged(Exception):
    """Nothing more can be judged; says why."""


class Sandbox:
    """A learner's process, asked and answered by lines; ended with all that it has started."""

    def __init__(
        self, course: Path, limits: Limits, command: tuple[str, ...] = RUN, *, closed: bool
    ):
        self._end, self._limits = time.monotonic() + START_LIMIT_S, limits
        self._folder = tempfile.TemporaryDirectory(prefix="graded-", ignore_cleanup_errors=True)
        room = self._folder.name
        if not closed:
            shutil.copytree(course, room, dirs_exist_ok=True)
            Path(room, "my_notebooks").mkdir()
        home = inside.HOME if closed else room
        env = {"HOME": home, "PYTHONPATH": home, "PATH": f"{sys.prefix}/bin:/usr/bin:/bin"}
        env |= {"USER": "learner", "MPLBACKEND": "agg", "OMP_WAIT_POLICY": "passive"}
        env = {**env, "TMPDIR": "/tmp"} if closed else {**os.environ, **env, "TMPDIR": home}
        shown = {f"{home}/{each.name}": str(each) for each in course.glob("*")}
        plan = {
            "room": room if closed else "",
            "shown": {path: path for path in (sys.prefix, sys.base_prefix)} | shown,
            "files_gib": FILES_GIB,
            "limits": {**MOST, "DATA": int((limits.memory_gib + DATA_GIB) * GIB)},
            "cwd": f"{home}/my_notebooks",
            "command": command,
            "env": env,
        }
        self._process = psutil.Popen(
            [sys.executable, "-I", "-S", inside.__file__],
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL},
            cwd="/" if closed else room,
            start_new_session=True,  # Ctrl-C is for whoever waits, which then ends this
        )
        self._lines: queue.Queue[bytes] = queue.Queue(4)
        threading.Thread(target=self._read, daemon=True).start()
        self._send(plan)

    def begin(self) -> None:
        """From now on its time counts."""
        self._end = time.monotonic() + self._limits.time_s

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            while line := self._process.stdout.readline(LONGEST_ANSWER):
                self._lines.put(line)
        self._lines.put(b"")

    def _send(self, words: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended: no answer will come
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()

    def ask(self, *question: Any, limit_s: float = CASE_LIMIT_S) -> list:
        """What it answers; NotJudged if it ended, is silent, takes too much or says nonsense."""
        if question:  # in a thread: who does not read it shall not keep us waiting
            threading.Thread(target=self._send, args=(question,), daemon=True).start()
        end = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=POLL_S)
                break
            if time.monotonic() > self._end:
                raise NotJudged(f"the notebook's {self._limits.time_s:g} s were over")
            if time.monotonic() > end:
                raise NotJudged(f"its process gave no answer for {limit_s:.0f} s")
            if sum(map(_memory, self.processes())) > self._limits.memory_gib * GIB:
                words = f"its processes took more than {self._limits.memory_gib:g} GB of memory"
                raise NotJudged(words)
        if not line:
            raise NotJudged("its process has ended")
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, list) and found and isinstance(found[0], str):
                return found
        raise NotJudged("its process answered with what is no answer")

    def processes(self) -> list[psutil.Process]:
        """It and all that it has started; without namespaces, all but what has lost its parent."""
        with contextlib.suppress(psutil.Error):
            return [self._process, *self._process.children(recursive=True)]
        return []

    def end(self) -> None:
        """End all of it at once."""
        for process in [*self.processes(), self._process]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._folder.cleanup()


def _memory(process: psutil.Process) -> int:
    """Bytes of one process; what several share counts in each."""
    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0


@functools.cache
def can_close() -> bool:
    """Whether this machine gives namespaces; tried with a connection to itself."""
    if sys.platform != "linux":
        return False
    box = Sandbox(Path("/nowhere"), Limits(120, 1), ("-c", PROBE), closed=True)
    try:
        return box.ask(limit_s=120) == ["ready"]
    except NotJudged:
        return False
    finally:
        box.end()
