"""What a shell does: run a command in the foreground, wait for a lock file, write a file whole.

Page `start_here`. Standard library only. Source: `man bash` (exit statuses), `man flock`.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

EVERY_S = 30  # a line of progress where there is no terminal to rewrite it in


def call(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> int:
    """Run a command; return 0 to 255, or 128 + n when signal n ended it.

    When it is `quiet`, one line tells how far it is; only if it fails is what it said last shown.
    Ctrl-C in a terminal reaches the command as well, so this waits for it to end in its own way,
    and raises KeyboardInterrupt if it did not end with 0. An interrupt or SIGTERM that reaches this
    process alone is passed on.
    """
    settings = {"prefix": "mpcourse-", "suffix": ".log", "delete": False}
    log = tempfile.NamedTemporaryFile(**settings) if quiet else None
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=log, stderr=log)
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    interrupted, seconds = False, 0
    while process.returncode is None:
        try:
            process.wait(1 if log else None)
        except subprocess.TimeoutExpired:
            seconds += 1
            line = f"{seconds:4} s  {how_far(Path(log.name))}"
            show_progress(line)
            if not sys.stdout.isatty() and seconds % EVERY_S == 0:
                print(line, flush=True)
        except KeyboardInterrupt:
            interrupted = True
            if os.name != "nt" and not os.isatty(0):  # no terminal has told the command
                process.send_signal(signal.SIGINT)
    signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
    if interrupted and process.returncode:
        raise KeyboardInterrupt
    if log:
        show_progress("")
        log.close()
        if process.returncode:
            said = Path(log.name).read_text("utf-8", "replace").rstrip().splitlines()
            print(*[line for line in said if "WARNING: Retrying" not in line][-10:], sep="\n")
            print(f"All of it is in {log.name}.", flush=True)
        else:
            os.unlink(log.name)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def how_far(log: Path) -> str:
    """What pip is at, from its log: packages of all that it has found to be needed."""
    said = log.read_text("utf-8", "replace")
    if "WARNING: Retrying" in said.rstrip().rpartition("\n")[2]:
        return "the package index does not answer; pip tries again"
    needed = len(set(re.findall(r"^(?:Collecting|Processing) (\S+)", said, re.MULTILINE)))
    if "\nInstalling collected packages" in said:
        return f"installing {needed} packages"
    sizes = re.findall(r"(?:Downloading|Using cached) \S+(?:whl|gz) (\(.*?\))", said)
    return f"fetching package {len(sizes)} of {needed} found so far {sizes[-1]}" if sizes else ""


def show_progress(words: str) -> None:
    """Rewrite one line in a terminal; a file or a pipe gets what is finished only."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{words[:width]:<{width}}\r", end="", flush=True)


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
