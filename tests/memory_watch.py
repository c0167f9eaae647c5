"""How much memory a process and its children hold, watched from outside; Linux says it."""

import threading
from pathlib import Path

import psutil


class MemoryWatch(threading.Thread):
    """Adds up what a process and all its children hold, four times a second.

    Attributes:
        peak: The most that they held at once, in bytes: of pages that several share, a part each.
        peak_own: The same without what is a file's, such as torch's libraries.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = self.peak_own = 0
        self._root = psutil.Process(pid)
        self._ended = threading.Event()

    def now(self) -> tuple[int, int]:
        """All bytes, and those that are no file's."""
        total = own = 0
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
            except OSError:
                continue  # it has ended
            sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
            total += sizes["Pss"]
            own += sizes["Pss_Anon"] + sizes["Pss_Shmem"]
        return total, own

    def run(self) -> None:
        while not self._ended.wait(0.25):
            try:
                total, own = self.now()
            except psutil.NoSuchProcess:
                return
            self.peak, self.peak_own = max(self.peak, total), max(self.peak_own, own)

    def stop(self) -> None:
        self._ended.set()
        self.join()
