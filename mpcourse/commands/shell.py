"""What a shell does: run a command in the foreground, wait for a lock file, write a file whole.

Page `start_here`. Standard library only. Source: `man bash` (exit statuses), `man flock`.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def call(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> int:
    """Run a command; return 0 to 255, or 128 + n when signal n ended it.

    With a `log`, what it says goes into that file, and one line shows where it is.
    Ctrl-C in a terminal reaches the command as well, so this waits for it to end in its own way,
    and raises KeyboardInterrupt if it did not end with 0. An interrupt or SIGTERM that reaches this
    process alone is passed on.
    """
    process, arrived = None, []

    def pass_on(number: int, _: object = None) -> None:
        arrived.append(number)
        told = number == signal.SIGINT and (os.name == "nt" or os.isatty(0))  # by the terminal
        if process and not told:
            process.send_signal(number)

    # Before the command starts: a signal between its first line and our handler would end us alone.
    # What is ignored, as in a script's background, stays ignored, by the command as well.
    both = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    previous = {n: signal.signal(n, pass_on) for n in both}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if log else {}
    try:
        file = log.open("w", encoding="utf-8") if log else None  # before there is a process
        process = subprocess.Popen(command, cwd=cwd, env=env, text=True, errors="replace", **pipes)
        for number in arrived.copy():  # while it was being started
            pass_on(number)
        if log:
            _keep(process.stdout, file)
        process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)
    if signal.SIGINT in arrived and process.returncode:
        raise KeyboardInterrupt
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _keep(lines: Iterable[str], file: TextIO) -> None:
    """Write lines into a file and close it; a terminal shows the present one."""
    width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else 0
    with file:
        for line in lines:
            file.write(line)
            print(f"{line.strip()[:width]:{width}}", end="\r" * bool(width), flush=True)
    print(" " * width, end="\r" * bool(width), flush=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` while the block runs, after waiting for whoever holds it.

    The system takes the lock back when a process ends: a file left behind locks nobody out. There
    is no lock where the file cannot be written, nor on Windows, where a file in use is safe anyway.
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


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step: whoever looks finds the old one or the new one, whole."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(text.encode())
        os.replace(part, path)
    except OSError:  # the disk is full: what is there of it helps nobody
        part.unlink(missing_ok=True)
        raise
