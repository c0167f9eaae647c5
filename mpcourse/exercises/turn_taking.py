"""Ranks in one process, one at a time: sends and receives that can be watched.

Each rank is a thread. It runs until it waits for a message that has not been sent, and hands the
turn to the next. So every run is the same, and when nobody can go on, that is known at once.
"""

import time
from collections import defaultdict, deque

from torch import Tensor

from mpcourse.devices.workers import Worker, collect

POLL_S = 0.0002  # a thread that waits for its turn can be stopped between two looks

_workers: list[Worker] = []


class Stuck(Exception):
    """No rank can go on."""


class Exchange:
    """One run of a program on several ranks, and what is seen of it.

    `sent` has (source, target, piece) of each message, in the order of the run; `stuck` says from
    whom each rank waits for a message, if nobody could go on.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.sent: list[tuple[int, int, Tensor]] = []
        self.stuck: dict[int, int] | None = None
        self._waiting: dict[int, int] = {}
        self._turn = 0
        self._ended: set[int] = set()
        self._boxes: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)

    @property
    def unread(self) -> list[tuple[int, int]]:
        """(source, target) of the messages that nobody has received."""
        return [pair for pair, box in self._boxes.items() for _ in box]

    def run(self, program, tensors: list[Tensor]) -> list:
        """Call `program(tensor, rank, count, send, recv)` on every rank; the results by rank.

        Raises what the first rank raised that raised something of its own, or `Stuck`.
        """
        while len(_workers) < self.count:
            _workers.append(Worker(f"rank {len(_workers)} of the check"))
        outcomes = collect(
            [_workers[r].submit(self._one, program, t, r) for r, t in enumerate(tensors)]
        )
        errors = [error for _, error in outcomes if error is not None]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Stuck))
        return [result for result, _ in outcomes]

    def _one(self, program, tensor: Tensor, rank: int) -> tuple:
        def send(piece: Tensor, target: int) -> None:
            if not isinstance(piece, Tensor):
                raise TypeError(f"send takes a tensor; got {type(piece).__name__}")
            self._check(rank, target, "send to")
            piece = piece.detach().clone()
            self._boxes[rank, int(target)].append(piece)
            self.sent.append((rank, int(target), piece))

        def recv(source: int) -> Tensor:
            self._check(rank, source, "receive from")
            box = self._boxes[int(source), rank]
            if not box:
                self._waiting[rank] = int(source)
                self._pass_turn(rank)
                self._await_turn(rank)
                del self._waiting[rank]
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
        if other == rank or other not in range(self.count):
            raise ValueError(f"rank {rank} of {self.count} cannot {what} rank {other}")

    def _await_turn(self, rank: int) -> None:
        while self._turn != rank and self.stuck is None:
            time.sleep(POLL_S)
        if self.stuck is not None:
            raise Stuck

    def _pass_turn(self, rank: int) -> None:
        for step in range(1, self.count + 1):
            other = (rank + step) % self.count
            source = self._waiting.get(other)
            if other not in self._ended and (source is None or self._boxes[source, other]):
                self._turn = other
                return
        if len(self._ended) < self.count and self.stuck is None:
            self.stuck = dict(self._waiting)
