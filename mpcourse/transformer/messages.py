"""What a cut layer sends: predicted from its sizes, counted as it runs.

Pages `sharded_data_parallel`, `cut_inside_a_layer`, `long_sequences`, `experts` and others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

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
