"""One process of a run: its place among the others, and what it lets the launcher know.

Every rank leaves small files in the launcher's folder: where it is, what it returns, what it
raised. A dead process cannot say where it died, but its last note can.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from mpcourse.multiprocess.faults import Fault

REPORTS = "MPCOURSE_REPORTS"  # environment: the folder of these files; the launcher's, if any
STOPPED = "stopped"  # a file there: the launcher has ended the run itself
ABANDONED = 75  # exit code of a rank whose launcher is gone
NOTE_BYTES = 256
# What a rank raises when another one is at fault; found in the words, the type is RuntimeError.
LOST = re.compile(r"connection|tim(ed|e) ?out|peer|unreachable|broken pipe|store", re.IGNORECASE)


class Rank:
    """This process among `world_size`.

    Args:
        timeout_s: How long a collective waits for the others.
        fault: What goes wrong in this run, if anything.

    Attributes:
        rank: Which one, from 0.
        world_size: How many there are.
        attempt: How often torchrun has restarted the run.
        device: Where this rank's tensors live: a GPU of its own if there are enough, else the CPU.
        backend: "nccl" on GPUs, "gloo" on the CPU.
    """

    def __init__(self, timeout_s: float = 60.0, fault: Fault | None = None) -> None:
        def number(name: str, default: int) -> int:
            return int(os.environ.get(name, default))

        self.rank, self.world_size = number("RANK", 0), number("WORLD_SIZE", 1)
        self.attempt = number("TORCHELASTIC_RESTART_COUNT", 0)
        self.device = _own_device(number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1))
        self.backend = "nccl" if self.device.type == "cuda" else "gloo"
        self._step: int | None = None
        self._timeout = timedelta(seconds=timeout_s)
        self._fault = fault if self.attempt == 0 else None
        reports = os.environ.get(REPORTS)
        self._reports = Path(reports) if reports else None
        self._note = open(self._reports / f"note-{self.rank}", "wb") if self._reports else None
        if self._reports:
            threading.Thread(target=_die_with_the_launcher, daemon=True).start()

    def connect(self) -> None:
        """Meet the other ranks."""
        self.at("start")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        distributed.init_process_group(self.backend, timeout=self._timeout)

    def at(self, where: str, step: int | None = None) -> None:
        """Note where this rank is; here a planted fault strikes. The step is the last one named."""
        step = self._step = self._step if step is None else step
        if self._note:
            words = {"where": where, "step": step, "time": time.time(), "attempt": self.attempt}
            words["pid"] = os.getpid()
            self._note.seek(0)
            self._note.write(json.dumps(words).encode().ljust(NOTE_BYTES))
            self._note.flush()
        if self._fault and self._fault.strikes(self.rank, where, step):
            self._fault.strike()

    def seconds(self) -> float:
        """What the clock shows when this rank's device has done all that was queued on it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def say(self, text: str) -> None:
        """Print a line that says which rank it is from."""
        # one write, so that the lines of two ranks do not mix
        sys.stdout.write(f"rank {self.rank}: {text}\n")
        sys.stdout.flush()

    def returns(self, result: dict[str, Any]) -> None:
        """Hand the result to the launcher: numbers, strings, tensors, lists and dicts of them."""
        if self._reports is None:
            plain = {k: v for k, v in result.items() if isinstance(v, int | float | str)}
            self.say(json.dumps(plain))
            return
        part = self._reports / f"result-{self.rank}.part"
        torch.save(result, part)
        part.replace(part.with_suffix(".pt"))

    def failed(self, error: BaseException) -> None:
        """Tell the launcher, or the terminal, what this rank raised."""
        words = traceback.format_exc()
        self.say(f"failed: {type(error).__name__}: {error}")
        if self._reports:
            said = f"{type(error).__name__}: {error}"
            is_os = isinstance(error, OSError) and not isinstance(error, ConnectionError)
            report = {
                "said": said,
                "traceback": words,
                "lost": bool(LOST.search(str(error))) and not is_os,
                "attempt": self.attempt,
                "time": time.time(),
            }
            part = self._reports / f"error-{self.rank}.part"
            part.write_text(json.dumps(report), encoding="utf-8")
            part.replace(part.with_suffix(".json"))

    def close(self) -> None:
        """Leave the process group."""
        if distributed.is_initialized():
            with contextlib.suppress(RuntimeError):
                distributed.destroy_process_group()


def _own_device(local_rank: int, local_world_size: int) -> torch.device:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= local_world_size:
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def kill_rank(note: dict[str, Any] | None) -> None:
    """End the rank that wrote a note, if it is still there: a stopped process ends in no other way.

    Not on Windows.
    """
    with contextlib.suppress(AttributeError, TypeError, ProcessLookupError, PermissionError):
        if os.getsid(note["pid"]) == note["pid"]:  # torchrun gives each rank a session of its own
            os.kill(note["pid"], signal.SIGKILL)


def _die_with_the_launcher() -> None:
    """End this process when the launcher's end of the standard input closes.

    torchrun starts each rank in a session of its own, and nobody ends it when torchrun is killed.
    But all of them have inherited one pipe, and the kernel closes it, however the launcher ends.
    One that was killed has left its folder behind: it goes with the ranks.
    """
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    reports = Path(os.environ[REPORTS])
    if not (reports / STOPPED).exists():
        shutil.rmtree(reports, ignore_errors=True)
    os._exit(ABANDONED)
