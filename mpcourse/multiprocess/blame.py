"""Who is to blame: from what the ranks have left behind to one sentence that names a rank.

When one rank dies, all the others fail too, because they lose their connections. The first error in
the log is often one of theirs.
"""

import contextlib
import json
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The report of torchrun: "rank : 1 (local_rank: 1)", "exitcode : -9 (pid: 4711)".
EXIT_CODES = re.compile(r"rank\s+: (\d+) \(local_rank.*\n\s*exitcode\s+: (-?\d+)")
# NCCL's own thread ends a process whose collective waits too long; Python there raises nothing.
GAVE_UP = re.compile(r"\[rank(\d+)\]:.*Watchdog caught collective operation timeout")
ENDED_BY_TORCHRUN = -getattr(signal, "SIGTERM", 15)


class RankError(RuntimeError):
    """A run has failed; the message names the rank and ends with its own words.

    Attributes:
        rank: The rank that is to blame, or None if nobody knows.
        last_seen: When it left its last note, in seconds of `time.time`, if it left one.
    """

    def __init__(self, message: str, rank: int | None, last_seen: float | None = None) -> None:
        super().__init__(message)
        self.rank, self.last_seen = rank, last_seen


@dataclass(frozen=True)
class Report:
    """What is known of one rank.

    Attributes:
        rank: Which one.
        note: Its last note: where, step, time, attempt.
        error: What it raised: said, traceback, lost (a connection), time.
        exit_code: As torchrun saw it; None if it has not said.
    """

    rank: int
    note: dict[str, Any] | None
    error: dict[str, Any] | None
    exit_code: int | None

    @property
    def place(self) -> str:
        """Where the rank was last, in words."""
        if self.note is None:
            return "before its first word"
        step = self.note["step"]
        where = f"at its {self.note['where']}" if step is None else f"in {self.note['where']}"
        return where if step is None else f"{where} of step {step}"

    @property
    def died_silently(self) -> bool:
        """Whether it ended without an error of its own, and not because torchrun ended it."""
        return self.error is None and self.exit_code not in (None, 0, ENDED_BY_TORCHRUN)


def read_reports(folder: Path, ranks: Iterable[int], output: str) -> list[Report]:
    """What each rank of the last attempt has left.

    Args:
        folder: The launcher's.
        ranks: Which ranks.
        output: All that torchrun has printed.
    """
    codes = {int(rank): int(code) for rank, code in EXIT_CODES.findall(output)}
    left = {
        rank: (_read(folder / f"note-{rank}"), _read(folder / f"error-{rank}.json"))
        for rank in ranks
    }
    last = max((entry["attempt"] for row in left.values() for entry in row if entry), default=0)
    for rank in {int(rank) for rank in GAVE_UP.findall(output)} & left.keys():
        note, error = left[rank]
        left[rank] = note, error or _gave_up(note, last)
    return [
        Report(rank, _of(last, note), _of(last, error), codes.get(rank))
        for rank, (note, error) in left.items()
    ]


def _gave_up(note: dict[str, Any] | None, attempt: int) -> dict[str, Any]:
    """What a rank would have said that NCCL has ended, because it waited for another too long."""
    said = "NCCL's watchdog ended it: a collective took longer than its time limit"
    time = note["time"] if note else 0.0
    return {"said": said, "traceback": said, "lost": True, "attempt": attempt, "time": time}


def ranks_here(folder: Path, processes: int, *, is_only_host: bool) -> list[int]:
    """The ranks of this host: all, or those that have left a note if there are several hosts."""
    if is_only_host:
        return list(range(processes))
    return sorted(int(path.name.removeprefix("note-")) for path in folder.glob("note-*"))


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def _of(attempt: int, entry: dict[str, Any] | None) -> dict[str, Any] | None:
    return entry if entry and entry["attempt"] == attempt else None


def explain(reports: list[Report], output: str) -> RankError:
    """The error that names the rank to blame.

    In this order: a rank that died without a word; the first that raised something of its own; the
    one that the others waited for in vain; the first that lost its connection (with several hosts,
    the one that is to blame may be elsewhere).
    """
    failed = sorted((r for r in reports if r.error), key=lambda r: r.error["time"])
    own = [report for report in failed if not report.error["lost"]]
    silent = [report for report in reports if report.died_silently]
    late = [report for report in reports if failed and not report.error]
    if silent:
        message, blamed = f"{_death(silent[0])} {silent[0].place}", silent[0]
    elif own:
        message, blamed = f"rank {own[0].rank} failed {own[0].place}", own[0]
    elif late:
        blamed = min(late, key=lambda report: report.note["time"] if report.note else 0.0)
        message = f"rank {blamed.rank} did not answer; it was last seen {blamed.place}"
    elif failed:
        message, blamed = f"rank {failed[0].rank} lost the others {failed[0].place}", failed[0]
    else:
        return RankError(f"torchrun failed before any rank began:\n{_tail(output)}", None)
    words = [message]
    if blamed.note is None:
        words.append(_tail(output))
    elif blamed.error:
        words.append(blamed.error["traceback"].strip())
    else:
        words += [f"rank {r.rank}, {r.place}: {r.error['said']}" for r in failed]
    last_seen = blamed.note["time"] if blamed.note else None
    return RankError("\n".join(words), blamed.rank, last_seen)


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-20:])


def _death(report: Report) -> str:
    code = report.exit_code
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"rank {report.rank} was killed ({signal.Signals(-code).name})"
    return f"rank {report.rank} died (exit code {code})"


def whereabouts(reports: list[Report]) -> str:
    """Where every rank was last, in words."""
    return "; ".join(f"rank {report.rank} {report.place}" for report in reports)
