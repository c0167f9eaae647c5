"""What the tests of several processes share: who is still alive, and what lies about."""

import contextlib
import io
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpcourse.multiprocess.scripts import Scripts

MARK = "MPCOURSE_TEST"  # environment: every process that a test starts inherits it
SHARED_MEMORY = Path("/dev/shm")


def alive(mark: str) -> list[int]:
    """The processes, this one apart, that carry the mark; only Linux says."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def all_gone(mark: str, limit_s: float = 30.0) -> bool:
    """Wait until no process carries the mark."""
    end = time.monotonic() + limit_s
    while alive(mark):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def shared_memory() -> set[str]:
    """The blocks of shared memory that torch has made."""
    return (
        {path.name for path in SHARED_MEMORY.glob("torch_*")} if SHARED_MEMORY.is_dir() else set()
    )


@contextlib.contextmanager
def nothing_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Inside: a mark on all processes. After: none is alive, and no file or memory is left."""
    mark = uuid.uuid4().hex
    folder.mkdir()
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    before = shared_memory()
    yield mark
    assert all_gone(mark)
    # torch makes the folder of its compiler's cache on import and keeps it from run to run
    left = [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")]
    assert not left, left
    end = time.monotonic() + 10
    while not shared_memory() <= before:  # other tests may run at the same time
        assert time.monotonic() < end
        time.sleep(0.1)


def printed_by(program: str, ranks: int, words: str = "") -> list[str]:
    """What a program prints under torchrun: the lines of rank 0, then those of rank 1, and so on.

    Args:
        program: Its source.
        ranks: How many processes.
        words: Of its command line.
    """
    scripts = Scripts()
    scripts.write("program.py", program)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        scripts.run(f"torchrun --standalone --nproc-per-node {ranks} program.py {words}")
    return printed.getvalue().splitlines()
