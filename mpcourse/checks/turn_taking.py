"""Ranks in one process, one at a time: sends and receives that can be watched.

Page `collectives`.

Each rank is a thread. It runs until it waits for a message that has not been sent, and hands the
turn to the next. So every run is the same, and when nobody can go on, that is known at once.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mpcourse.devices.workers import Worker, collect

POLL_S = 0.0002  # a thread that waits for its turn can be stopped between two looks

Program = Callable[..., Any]  # (tensor, rank, count, send, recv)

_workers: list[Worker] = []


class Stuck(Exception):
    """No rank can go on."""


@dataclass
class Exchange:
    """One run of a program on several ranks.

    Attributes:
        count: How many ranks.
        sent: (source, target, the piece) of each message, in the order of the run.
        waiting: Rank -> from whom it waits for a message, for those that wait.
        stuck: The same when nobody could go on; None if all came to an end.
    """

    count: int
    sent: list[tuple[int, int, Tensor]] = field(default_factory=list)
    waiting: dict[int, int] = field(default_factory=dict)
    stuck: dict[int, int] | None = None

    def __post_init__(self) -> None:
        self._turn = 0
        self._ended: set[int] = set()
        self._boxes: dict[tuple[int, int], deque[Tensor]] = {}

    @property
    def unread(self) -> list[tuple[int, int]]:
        """(source, target) of the messages that nobody has received."""
        return [pair for pair, box in self._boxes.items() for _ in box]

    def sent_by(self, rank: int) -> list[int]:
        """How many numbers were in each message of a rank."""
        return [piece.numel() for source, _, piece in self.sent if source == rank]

    def run(self, program: Program, tensors: list[Tensor]) -> list[Any]:
        """Run the program on every rank; its results in order of rank.

        Args:
            program: Called with the rank's tensor, its number, `count`, `send(piece, target)` and
                `recv(source)`.
            tensors: One per rank.

        Raises:
            Stuck: Nobody can go on.
            Exception: What the first rank raised that raised something of its own.
        """
        while len(_workers) < self.count:
            _workers.append(Worker(f"rank {len(_workers)} of the check"))
        jobs = [
            _workers[rank].submit(self._one, program, tensor, rank)
            for rank, tensor in enumerate(tensors)
        ]
        outcomes = collect(jobs)
        errors = [error for _, error in outcomes if error is not None]
        errors.sort(key=lambda error: isinstance(error, Stuck))
        if errors:
            raise errors[0]
        return [result for result, _ in outcomes]

    def _one(self, program: Program, tensor: Tensor, rank: int) -> tuple[Any, Exception | None]:
        def send(piece: Tensor, target: int) -> None:
            self._check(rank, target, "send to")
            if not isinstance(piece, Tensor):
                raise TypeError(f"send takes a tensor; got {type(piece).__name__}")
            piece = piece.detach().clone()
            self._boxes.setdefault((rank, int(target)), deque()).append(piece)
            self.sent.append((rank, int(target), piece))

        def recv(source: int) -> Tensor:
            self._check(rank, source, "receive from")
            box = self._boxes.setdefault((int(source), rank), deque())
            if not box:
                self.waiting[rank] = int(source)
                self._pass_turn(rank)
                self._await_turn(rank)
                self.waiting.pop(rank)
            return box.popleft().clone()

        try:
            self._await_turn(rank)
            return program(tensor, rank, self.count, send, recv), None
        except Exception as error:
            return None, error
        finally:
            self._ended.add(rank)
            self._pass_turn(rank)

    def _check(self, rank: int, other: int, what: str) -> None:
        allowed = [number for number in range(self.count) if number != rank]
        if other not in allowed:
            raise ValueError(f"rank {rank} of {self.count} cannot {what} rank {other}")

    def _await_turn(self, rank: int) -> None:
        while self._turn != rank and self.stuck is None:
            time.sleep(POLL_S)
        if self.stuck is not None:
            raise Stuck

    def _pass_turn(self, rank: int) -> None:
        for step in range(1, self.count + 1):
            other = (rank + step) % self.count
            if other not in self._ended and self._can_go_on(other):
                self._turn = other
                return
        if len(self._ended) < self.count and self.stuck is None:
            self.stuck = dict(self.waiting)

    def _can_go_on(self, rank: int) -> bool:
        source = self.waiting.get(rank)
        return source is None or bool(self._boxes.get((source, rank)))
