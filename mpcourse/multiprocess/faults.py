"""Faults to order: what happens when a rank is killed, raises, sleeps, or finds its disk full.

A fault is planted by `--fault HOW:RANK:WHERE[:STEP]`, for example `kill:1:forward:3`. It strikes
in the first attempt only, so that a restart can show how the run goes on.
"""

import errno
import os
import signal
import sys
import time
from dataclasses import dataclass

HOWS = ("kill", "raise", "sleep", "full")
PLACES = ("start", "forward", "backward", "all-reduce", "step", "checkpoint")
SLEEP_S = 3600.0  # longer than anybody waits


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        how: One of `HOWS`; "full" is a disk without room.
        rank: Whom it strikes.
        where: One of `PLACES`.
        step: In which step, from 0; the first time when None.
    """

    how: str
    rank: int
    where: str
    step: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Read `HOW:RANK:WHERE[:STEP]`.

        Raises:
            ValueError: A part is missing, unknown or not a number.
        """
        how, _, rest = text.partition(":")
        rank, _, rest = rest.partition(":")
        where, _, step = rest.partition(":")
        if how not in HOWS or where not in PLACES or not (rank + step).isdigit():
            raise ValueError(
                f"a fault is HOW:RANK:WHERE[:STEP], with HOW one of {', '.join(HOWS)} and WHERE "
                f"one of {', '.join(PLACES)}; got {text!r}"
            )
        return cls(how, int(rank), where, int(step) if step else None)

    def strikes(self, rank: int, where: str, step: int | None) -> bool:
        """Whether it is this rank's turn, here and now."""
        here = (rank, where) == (self.rank, self.where)
        return here and self.step in (None, step)

    def strike(self) -> None:
        """Do the damage."""
        if self.how == "kill":
            sys.stdout.flush()
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        if self.how == "sleep":
            time.sleep(SLEEP_S)
        if self.how == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise RuntimeError(f"a fault was planted in rank {self.rank}, {self.where}")
