"""What a shell does: run a command in the foreground, wait for a lock file, write a file whole.

Page `start_here`. Standard library only. Source: `man bash` (exit statuses), `man flock`.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def call(command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None) -> int:
    """Run a command; return 0 to 255, or 128 + n when signal n ended it.

    Ctrl-C in a terminal reaches the command as well, so this waits for it to end in its own way,
    and raises KeyboardInterrupt if it did not end with 0. An interrupt or SIGTERM that reaches this
    process alone is passed on.
    """
    process = subprocess.Popen(command, cwd=cwd, env=env)
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    interrupted = False
    while process.returncode is None:
        try:
            process.wait()
        except KeyboardInterrupt:
            interrupted = True
            if os.name != "nt" and not os.isatty(0):  # no terminal has told the command
                process.send_signal(signal.SIGINT)
    signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
    if interrupted and process.returncode:
        raise KeyboardInterrupt
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


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
