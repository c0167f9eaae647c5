"""What a shell does: run a command in the foreground, wait for a lock file, write a file whole.

Behind `python -m mpcourse` (page `start_here`); standard library only. Source: `man bash` (exit
statuses), `man flock`.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

if os.name == "nt":
    import msvcrt
else:
    import fcntl


def call(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    log: BinaryIO | None = None,
) -> int:
    """Run a command in the foreground; return 0 to 255, or 128 + n when signal n ended it.

    What it says goes to the file `log` if there is one; a terminal then has one line that tells
    how long it takes and what was said last.

    Ctrl-C in a terminal reaches the command as well, so this waits for it to end in its own way
    (`subprocess.run` kills it after a quarter of a second), and raises KeyboardInterrupt if it did
    not end with 0. An interrupt or SIGTERM that reaches this process alone is passed on.
    """
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=log, stderr=log)
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    interrupted = False
    try:
        while process.returncode is None:
            try:
                process.wait(1.0 if log else None)
            except subprocess.TimeoutExpired:
                show_progress(f"{time.monotonic() - start:4.0f} s  {_doing(log.name)}")
            except KeyboardInterrupt:
                interrupted = True
                if os.name != "nt" and not os.isatty(0):  # no terminal has told the command
                    process.send_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
        if log:
            show_progress("")
    if interrupted and process.returncode:
        raise KeyboardInterrupt
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def last_lines(path: str) -> str:
    """What stands at the end of a log."""
    return "\n".join(Path(path).read_text("utf-8", "replace").rstrip().splitlines()[-20:])


def _doing(path: str) -> str:
    """What pip said last that it is doing: `Downloading torch...`, `Installing collected ...`."""
    found = re.findall(r"^ *([A-Z]\w+ing .*)", Path(path).read_text("utf-8", "replace"), re.M)
    return found[-1] if found else ""


def show_progress(words: str) -> None:
    """Rewrite one line in a terminal; a file or a pipe gets what is finished only."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{words[:width]:<{width}}\r", end="", flush=True)


@contextlib.contextmanager
def locked(path: Path, *, poll_s: float = 0.5, limit_s: float = 3600.0) -> Iterator[None]:
    """Hold the lock file `path` while the block runs, after waiting for whoever holds it.

    The operating system takes the lock back when a process ends, however it ends: a file that was
    left behind locks nobody out. Where the file cannot be written there is no lock. Raises
    TimeoutError when another process held it for `limit_s`.
    """
    with contextlib.ExitStack() as stack:
        file = None
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("a"))
        if file:
            _wait_for_lock(file.fileno(), path, poll_s, limit_s)
        yield


def _wait_for_lock(fileno: int, path: Path, poll_s: float, limit_s: float) -> None:
    give_up_at = time.monotonic() + limit_s
    said = False
    while not _try_lock(fileno):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"another start holds {path}: end it, or delete that file")
        if not said:
            print(f"Another start is at work (it holds {path}): waiting for it.", flush=True)
            said = True
        time.sleep(poll_s)


def _try_lock(fileno: int) -> bool:
    try:
        if os.name == "nt":
            msvcrt.locking(fileno, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(fileno, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks must not keep anyone from starting
        pass
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step: whoever looks finds the old one or the new one, whole."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(text.encode())
        os.replace(part, path)
    except OSError:  # the disk is full: what is there of it helps nobody
        part.unlink(missing_ok=True)
        raise
