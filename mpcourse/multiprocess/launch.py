"""Start a program under torchrun from a page, follow it, and leave nothing behind.

Page `distributed_data_parallel`.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mpcourse.multiprocess.blame import (
    Report,
    explain,
    ranks_here,
    read_reports,
    whereabouts,
)
from mpcourse.multiprocess.programs import parse
from mpcourse.multiprocess.rank import REPORTS, STOPPED, kill_rank
from mpcourse.multiprocess.torchrun import (
    ENVIRONMENT,
    Host,
    interface_of,
    option_words,
    torchrun_command,
)

IS_WINDOWS = sys.platform == "win32"
REPOSITORY = Path(__file__).resolve().parents[2]
GRACE_S = 5.0  # from a rank's error, or from being asked to end, to being killed


@dataclass(frozen=True)
class Outcome:
    """What a run has returned.

    Attributes:
        results: What each rank (of this host) returned, in order of rank.
        restarts: How often torchrun had to start the run again.
        output: All lines that were printed, torchrun's own among them.
    """

    results: list[dict[str, Any]]
    restarts: int
    output: str


def launch(
    program: str,
    *,
    processes: int = 2,
    restarts: int = 0,
    host: Host | None = None,
    time_limit_s: float = 600.0,
    on_line: Callable[[str], None] | None = print,
    **options: Any,
) -> Outcome:
    """Run a program of this package in processes of their own and wait for its results.

    The same as `python -m torch.distributed.run … -m mpcourse.multiprocess PROGRAM …`; the command
    line is `torchrun_command([program, …])`. Each process has one thread on the CPU. However
    this call ends, also by an interrupt, no process is left.

    Args:
        program: A name from `mpcourse.multiprocess.programs.PROGRAMS`.
        processes: How many, 1 or more; on this host, if there are several.
        restarts: How often torchrun may start the run again after a failure.
        host: Which of several hosts this is; `launch` is called on each of them.
        time_limit_s: How long the whole run may take, in seconds.
        on_line: Called with each line that a rank prints; None is silent.
        options: Of the program: `epochs=1` is `--epochs 1`.

    Raises:
        ValueError: There is no such program or option; nothing has been started.
        RankError: A rank failed. The message names it and holds its own words.
        TimeoutError: The time is up. The message says where each rank was.
    """
    return launch_words(
        [program, *option_words(options)],
        processes=processes,
        restarts=restarts,
        host=host,
        time_limit_s=time_limit_s,
        on_line=on_line,
    )


def launch_words(
    words: Sequence[str],
    *,
    processes: int,
    restarts: int,
    host: Host | None,
    time_limit_s: float,
    on_line: Callable[[str], None] | None = print,
) -> Outcome:
    """The same, with the program and its options as words of a command line."""
    command = torchrun_command(words, processes=processes, restarts=restarts, host=host)
    parse(words)
    with tempfile.TemporaryDirectory(prefix="mpcourse-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        run = _Run(command, folder, processes, restarts, host)
        try:
            code = run.follow(time_limit_s, on_line)
        finally:
            run.stop()
        if code != 0:
            raise explain(run.reports(), run.output)
        results = read_results(folder, run.ranks())
        return Outcome(results, run.attempt(), run.output)


def read_results(folder: Path, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """What each rank has handed over; a file that brings more than data is refused."""
    return [torch.load(folder / f"result-{n}.pt", "cpu", weights_only=True) for n in ranks]


class _Run:
    """torchrun as a child process, and what it prints."""

    def __init__(
        self, command: list[str], folder: Path, processes: int, restarts: int, host: Host | None
    ) -> None:
        self._folder, self._processes, self._restarts = folder, processes, restarts
        self._is_only_host = host is None
        self._printed: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        logs = folder / "logs"
        logs.mkdir()
        command = [*command[:3], "--log-dir", str(logs), *command[3:]]  # after python -m torch…
        own_group = (
            {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
            if IS_WINDOWS
            else {"start_new_session": True}
        )
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closes when this process ends: see rank.py
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=_environment(folder, host),
            **own_group,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    @property
    def output(self) -> str:
        """All that has been printed so far."""
        return "\n".join(self._printed)

    def ranks(self) -> list[int]:
        """The ranks of this host, as far as they are known."""
        return ranks_here(self._folder, self._processes, is_only_host=self._is_only_host)

    def reports(self) -> list[Report]:
        """What they have left."""
        return read_reports(self._folder, self.ranks(), self.output)

    def attempt(self) -> int:
        """Which attempt this is, from 0."""
        return max((r.note["attempt"] for r in self.reports() if r.note), default=0)

    def follow(self, limit_s: float, on_line: Callable[[str], None] | None) -> int:
        """Pass lines on until torchrun has ended; return its exit code."""
        start, failed_at = time.monotonic(), None
        while True:
            line = self._next_line()
            if line is None:
                return self._process.wait()
            if line:
                self._printed.append(line)
                if on_line and line.startswith("rank "):
                    on_line(line)
            now = time.monotonic()
            if now - start > limit_s:
                seen = whereabouts(self.reports())
                raise TimeoutError(f"the run is not done after {limit_s:g} s: {seen}")
            if failed_at is None and self._has_failed():
                failed_at = now
            if failed_at is not None and now - failed_at > GRACE_S:
                return 1  # torchrun gives a rank that ignores it half a minute; we do not

    def _next_line(self) -> str | None:
        """The next line, "" after a moment without one, None at the end."""
        try:
            return self._lines.get(timeout=0.1)
        except queue.Empty:
            return ""

    def _has_failed(self) -> bool:
        """Whether a rank has raised in the last attempt there is."""
        return any(r.error and r.error["attempt"] == self._restarts for r in self.reports())

    def stop(self) -> None:
        """End torchrun and all ranks, whatever they are doing, in three times `GRACE_S` at most."""
        (self._folder / STOPPED).touch()
        self._process.stdin.close()  # every rank ends by itself now
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))
                self._process.wait()
        for report in self.reports():
            kill_rank(report.note)
        self._reader.join(GRACE_S)
        while not self._lines.empty():
            self._printed.append(self._lines.get() or "")
        if not self._reader.is_alive():  # else it is still reading, and closing would wait for it
            self._process.stdout.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended in between
            self._process.terminate() if IS_WINDOWS else os.killpg(self._process.pid, number)


def _environment(folder: Path, host: Host | None) -> dict[str, str]:
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    interface = interface_of(host.address) if host else None
    return {
        **({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}),
        **os.environ,
        **ENVIRONMENT,
        REPORTS: str(folder),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",  # two processes with all cores each would be in each other's way
    }
