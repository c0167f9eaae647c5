"""What a cut layer sends: predicted from its sizes, counted as it runs.

Pages `sharded_data_parallel`, `cut_inside_a_layer`, `long_sequences`, `experts` and others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpcourse.schedules.timeline import Event

# Shares of the whole tensor that each of n ranks sends, over n - 1 and times n, in a ring.
# A broadcast has one sender: its share is the mean over all ranks as senders. An all-to-all goes
# from rank to rank, and this is its share where each gets the same.
ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "broadcast": 1, "all-to-all": 1}
_OPERATIONS = {
    "allreduce_": ("all-reduce", lambda arguments: arguments[0]),
    "broadcast_": ("broadcast", lambda arguments: arguments[0]),
    "allgather_": ("all-gather", lambda arguments: arguments[0][0]),
    "_allgather_base_": ("all-gather", lambda arguments: [arguments[0]]),
    "reduce_scatter_": ("reduce-scatter", lambda arguments: arguments[1][0]),
    "alltoall_base_": ("all-to-all", lambda arguments: [arguments[1]]),
    "_reduce_scatter_base_": ("reduce-scatter", lambda arguments: [arguments[1]]),
    "send": ("send", lambda arguments: arguments[0]),
}
_LETTERS = {"allreduce_": "R", "_allgather_base_": "G", "_reduce_scatter_base_": "S"}
_LETTERS |= {"mm": "P", "addmm": "P"}
_OTHERS = "recv_ recv_any_source_ barrier monitored_barrier_ check_for_nan".split()


@dataclass(frozen=True)
class Message:
    """One collective, or a send from one rank to one."""

    kind: str  # a key of ROUNDS, or "send"
    bytes: int  # of the whole tensor: summed, gathered, or before it is scattered or sent

    def sent(self, ranks: int) -> float:
        """The bytes that each rank sends in a ring of `ranks`."""
        if self.kind == "send":
            return self.bytes
        return ROUNDS[self.kind] * (ranks - 1) / ranks * self.bytes


class Counted(TorchDispatchMode):
    """Inside `with Counted() as counted:`, note this thread's messages as `counted.messages`.

    Kinds that `Message` does not know, and torch's functional collectives (those of a DTensor), are
    refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        """Note a collective and pass everything on."""
        name, space = getattr(function, "_opname", ""), getattr(function, "namespace", "")
        if space == "c10d" and name in _OPERATIONS:
            kind, tensors = _OPERATIONS[name]
            self.messages.append(Message(kind, sum(t.nbytes for t in tensors(arguments))))
        elif space in ("c10d", "_c10d_functional") and name not in _OTHERS:
            raise NotImplementedError(f"{space}.{name} is not counted; these are: {[*ROUNDS]}")
        return function(*arguments, **(keywords or {}))

    def sent(self, ranks: int) -> float:
        """The bytes that each rank sends in rings of `ranks`, all messages together."""
        return sum(message.sent(ranks) for message in self.messages)


def block_messages(tokens: int, width: int, itemsize: int, *, sequence: bool) -> list[Message]:
    """The messages of a block for N x T tokens, forward and backward; `sequence` cuts them too."""
    ways = ["all-gather", "reduce-scatter"] if sequence else ["all-reduce"]
    # attention and MLP, each with one way in and one way out, forward and backward
    return 4 * [Message(way, tokens * width * itemsize) for way in ways]


class TickClock(TorchDispatchMode):
    """Inside `with TickClock({"G": 2, "P": 3, "S": 2}) as clock:`, this thread's calls take ticks.

    Gathers (G), scatters (S) and all-reduces (R) take turns on a link, device 0 of `events`;
    products (P) are made on device 1. What reads a tensor waits for the message that fills it. A
    message that fills fewer than `least` numbers is not seen.
    """

    def __init__(self, ticks: dict[str, float], least: int = 0) -> None:
        super().__init__()
        self.ticks, self.least, self.calls, self.events = ticks, least, "", []
        self.now = self.free = 0.0  # of the device, of the link
        self._arrives: dict[int, float] = {}  # by storage

    def __torch_dispatch__(self, function: Any, types: Any, given: tuple, named: Any = None) -> Any:
        letter = _LETTERS.get(function._opname, "")
        tensors = [each for each in tree_leaves(given) if isinstance(each, Tensor)]
        storages = [each.untyped_storage()._cdata for each in tensors]
        message = letter in ("G", "S", "R")  # its first tensor is the one that it fills
        if message and tensors[0].numel() < self.least:
            message, letter = False, ""
        self.now = max([self.now, *(self._arrives.get(at, 0.0) for at in storages[message:])])
        start = max(self.now, self.free) if message else self.now
        end = start + self.ticks.get(letter, 0)
        if message:
            self.free = self._arrives[storages[0]] = end
        else:
            self.now = end
        if letter:
            self.calls += letter
            self.events.append(Event(int(not message), letter, start, end))
        return function(*given, **(named or {}))
