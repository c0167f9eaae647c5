"""How much memory a process and its children hold, watched from outside; Linux says it."""

import subprocess
import threading
from pathlib import Path

import psutil

IMPORT_AND_SAY = """
import torch
print(open("/proc/self/smaps_rollup").read())"""


def _held(text: str) -> tuple[int, int]:
    """Bytes of a process, shared ones by halves, thirds ...; and those that are no file's."""
    fields = (line.split() for line in text.strip().splitlines()[1:])
    sizes = {name: int(kilobytes) * 1024 for name, kilobytes, *_ in fields}
    return sizes["Pss:"], sizes["Pss_Anon:"] + sizes["Pss_Shmem:"]


def after_import(python: Path) -> int:
    """Bytes, no file's, of a process that has imported torch: a CPU build takes half as many."""
    command = [python, "-c", IMPORT_AND_SAY]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return _held(run.stdout)[1]


class MemoryWatch(threading.Thread):
    """Adds up what a process and all its children hold, four times a second.

    The process has made its imports when the watch is made.

    Attributes:
        peak: The most that they held at once, in bytes.
        growth: The most that they held at once beyond what imports take in each; libraries and
            other files left out.
    """

    def __init__(self, pid: int, *, child_imports: int) -> None:
        """Args: the process; what imports take in each of its children, as `after_import` says."""
        super().__init__(daemon=True)
        self.peak = self.growth = 0
        self._root = psutil.Process(pid)
        self._imports = {pid: self._read(pid)[1]}
        self._child_imports = child_imports
        self._ended = threading.Event()

    def _read(self, pid: int) -> tuple[int, int]:
        return _held(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8"))

    def look(self) -> None:
        """Read all processes once."""
        peak = growth = 0
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                everything, own = self._read(process.pid)
            except (OSError, ValueError):
                continue  # it has ended
            peak += everything
            growth += max(0, own - self._imports.get(process.pid, self._child_imports))
        self.peak, self.growth = max(self.peak, peak), max(self.growth, growth)

    def run(self) -> None:
        while not self._ended.wait(0.25):
            try:
                self.look()
            except psutil.NoSuchProcess:
                return

    def stop(self) -> None:
        self._ended.set()
        self.join()
