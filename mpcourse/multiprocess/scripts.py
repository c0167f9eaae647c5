"""Programs that a page writes, and the command lines that run them, each within a time limit.

Pages `collectives` and those after it that start torchrun.

Each rank prints into a file of its own, so that the lines of two ranks never mix and the output of
a run is the same every time: that of rank 0, then that of rank 1, and so on.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
STARTUP = Path(__file__).parent / "startup"  # Python reads its module as it starts
MAGIC = "program"
# torchrun needs this to restart gloo reliably: it shares its store with the ranks otherwise, where
# those of the second attempt find the addresses of the first (pytorch/pytorch issue 135712).
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TORCHRUN = ["-m", "torch.distributed.run"]
LOGS = "PET_LOG_DIR"  # of torchrun; here it also marks what belongs to a run
GRACE_S = 5.0  # for a process that was asked to end, until it is killed
FRAME = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)
RAISED = re.compile(r"^(?:\[rank\d+\]: *)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*: .*|[A-Z]\w*Error)$")
# gloo of torch 2.9 prints this for each group that it makes, among what the program prints
GLOO_SAYS = re.compile(r"^\[Gloo\] Rank \d+ is connected to .*\n", re.MULTILINE)
ROOT_CAUSE = re.compile(r"Root Cause.*?local_rank: (\d+).*?exitcode *: (-?\d+)", re.DOTALL)


class Scripts:
    """A temporary folder of programs; it goes when this object does.

    In a notebook, the cell magic `%%program NAME` writes its cell into the folder: it is
    `%%writefile` without a path.

    Attributes:
        folder: Where the programs are, and where they run.
    """

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(
            prefix="mpcourse-", ignore_cleanup_errors=True
        )
        self.folder = Path(self._temporary.name)
        with contextlib.suppress(ImportError):
            from IPython import get_ipython

            if shell := get_ipython():
                shell.register_magic_function(self.write, "cell", MAGIC)

    def write(self, name: str, source: str) -> None:
        """Write a program.

        Args:
            name: Of the file, without a folder.
            source: All of it.
        """
        name = name.strip()
        if name in ("", "..") or Path(name).name != name:
            raise ValueError(f"a program has the name of a file, without a folder; got {name!r}")
        (self.folder / name).write_text(source, encoding="utf-8")

    def run(self, line: str, *, time_limit_s: float = 120.0) -> None:
        """Run a command line in the folder and print what each rank says, in order of rank.

        The programs can import `mpcourse`; each process has one thread on the CPU. However this
        call ends, also by an interrupt, no process is left: what has not ended a few seconds after
        it was asked to is killed.

        Args:
            line: Begins with `torchrun`, or with `python` (this interpreter is taken).
            time_limit_s: How long it may take.

        Raises:
            ValueError: The line begins with something else.
            RuntimeError: The program failed. The message is its own, with its last line.
            TimeoutError: The time is up, and all has been ended.
        """
        command = _command(line)
        with tempfile.TemporaryDirectory(prefix="mpcourse-", ignore_cleanup_errors=True) as name:
            logs = Path(name)
            try:
                code = self._wait(command, logs, time_limit_s)
            finally:
                for path in _said_by_ranks(logs, "stdout"):
                    said = path.read_text(encoding="utf-8", errors="replace")
                    print(GLOO_SAYS.sub("", said), end="")
            if code != 0:
                raise RuntimeError(self._failure(logs, code))

    def _wait(self, command: list[str], logs: Path, limit_s: float) -> int:
        with (logs / "stdout.log").open("wb") as out, (logs / "stderr.log").open("wb") as errors:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=_environment(logs, command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,  # an interrupt of the page is ours to pass on
            )
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                words = f"not done after {limit_s:g} s; all its processes have been ended"
                raise TimeoutError(words) from None
            finally:
                _end_all(logs)
                process.kill()  # where a system does not tell whose it is
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)

    def _failure(self, logs: Path, code: int) -> str:
        """What the rank that failed first has said, or else what torchrun says."""
        own = (logs / "stderr.log").read_text(encoding="utf-8", errors="replace")
        files = {path.parent.name: path for path in _said_by_ranks(logs, "stderr")}  # last attempts
        ranks = [path.read_text(encoding="utf-8", errors="replace") for path in files.values()]
        cause = ROOT_CAUSE.search(own)
        if cause:
            ranks.insert(0, ranks[int(cause[1])])
        for said in [*ranks, *([] if cause else [own])]:
            lines = [found[1] for line in said.splitlines() if (found := RAISED.match(line))]
            if lines:
                return lines[-1] + self._place(said)
        if cause:  # it ended without an exception: a signal, or code outside of Python
            return f"rank {cause[1]} ended with exit code {cause[2]}: {ranks[0][-500:]}"
        return f"exit code {code}: {own[-500:]}"

    def _place(self, said: str) -> str:
        said = re.sub(r"^\[rank\d+\]: ?", "", said, flags=re.MULTILINE)
        mine = [
            (Path(path).name, number)
            for path, number in FRAME.findall(said)
            if Path(path).parent.name == self.folder.name
        ]
        return f" ({mine[-1][0]}, line {mine[-1][1]})" if mine else ""


def _command(line: str) -> list[str]:
    first, *rest = shlex.split(line) or [""]
    if first not in ("torchrun", "python"):
        raise ValueError(f"a line begins with torchrun or python; got {line!r}")
    return [sys.executable, *(TORCHRUN if first == "torchrun" else []), *rest]


def _environment(logs: Path, command: list[str]) -> dict[str, str]:
    paths = [str(STARTUP), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    restarts = any(re.match("--max[-_]restarts", word) for word in command)
    return {
        **os.environ,
        # only restarts need a store of the ranks' own: its port is chosen long before it is taken,
        # while torch is imported, and another process may take it first
        **(OWN_STORE if restarts else {}),
        # torchrun reads its own options from here too: a file for each rank, and no name service
        "PET_REDIRECTS": "3",
        LOGS: str(logs),
        "PET_LOCAL_ADDR": "127.0.0.1",
        "PET_MONITOR_INTERVAL": "0.1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",  # what a rank has said is there when it is ended
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
    }


def _said_by_ranks(logs: Path, stream: str) -> list[Path]:
    """The files of the ranks, in order of rank and attempt; the program's own without ranks."""
    files = logs.glob(f"*/attempt_*/*/{stream}.log")
    return sorted(files, key=_rank_and_attempt) or [logs / f"{stream}.log"]


def _rank_and_attempt(path: Path) -> tuple[int, int]:
    return int(path.parent.name), int(path.parents[1].name.removeprefix("attempt_"))


def _end_all(logs: Path) -> None:
    """End what is left of a run; each rank has a session of its own, so its mark finds it."""
    try:
        _ask(psutil.Process.terminate, logs)
    finally:  # also when somebody interrupts the wait
        _ask(psutil.Process.kill, logs)


def _ask(to_end: Callable[[psutil.Process], None], logs: Path) -> None:
    asked, deadline = set(), time.monotonic() + GRACE_S
    while (left := _processes_of(logs)) and time.monotonic() < deadline:
        for process in left - asked:
            with contextlib.suppress(psutil.Error):
                to_end(process)
        asked |= left
        time.sleep(0.02)


def _processes_of(logs: Path) -> set[psutil.Process]:
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # of others, or ended by now
            if process.environ().get(LOGS) == str(logs):
                found.add(process)
    return found
