"""Bytes counted: every storage of a tensor as it is made, and again when it is freed.

The size of a process tells little: an allocator keeps what was freed, and the libraries take room
of their own. A storage is counted once, however many tensors look at it.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storages_of(tensor: Tensor) -> list[torch.UntypedStorage]:
    """Where a tensor's bytes are; a sparse one has several places."""
    if tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout is torch.sparse_csr:
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    else:
        parts = [tensor]
    return [part.untyped_storage() for part in parts]


class ByteCounter(TorchDispatchMode):
    """Counts the bytes of all storages that operations make while it is entered.

    What an operation takes for itself and gives back before it returns is not seen.

    Attributes:
        live: Bytes held now.
        peak: The most that was held at once.
        phase: What is going on, as the caller says ("forward"); set it freely.
        peak_phase: The phase in which the peak was reached first.
        peak_operation: The operation that reached it, as in "aten.addmm.default".
    """

    def __init__(self, *held: Any) -> None:
        """Count from the beginning what is held already.

        Args:
            held: Tensors, in any nesting. An old tensor that is not among them counts as made when
                an operation changes it in place or gives back a view of it.
        """
        super().__init__()
        self.live = self.peak = 0
        self.phase = self.peak_phase = "start"
        self.peak_operation = ""
        self._known: dict[int, weakref.ref] = {}
        self.hold(held, "")

    def hold(self, values: Any, operation: str) -> None:
        """Count the storages of all tensors in `values` that are not counted yet."""
        for tensor in tree_leaves(values):
            if isinstance(tensor, Tensor):
                for storage in storages_of(tensor):
                    self._add(storage)
        if self.live > self.peak:
            self.peak, self.peak_phase, self.peak_operation = self.live, self.phase, operation

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:

            def freed(_: weakref.ref) -> None:
                self.live -= size
                del self._known[key]

            self._known[key] = weakref.ref(storage, freed)
            self.live += size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.hold(result, str(func))
        return result


class SavedBytes:
    """What autograd saves for the backward, as a context saw it."""

    def __init__(self) -> None:
        self.total = 0  # bytes, shared storages once, without those that the caller leaves out
        self.tensors = 0  # how many were saved, with those left out


@contextmanager
def saved_for_backward(*left_out: Any) -> Iterator[SavedBytes]:
    """Count what autograd saves within the context: the activations.

    Args:
        left_out: Tensors whose storages do not count, in any nesting: the parameters and the batch
            are saved too, and are held anyway.

    Source: `torch.autograd.graph.saved_tensors_hooks`.
    """
    leaves = [leaf for leaf in tree_leaves(left_out) if isinstance(leaf, Tensor)]
    # the leaves are kept alive, so that no address is reused
    storages = {storage._cdata: leaf for leaf in leaves for storage in storages_of(leaf)}
    saved = SavedBytes()

    def pack(tensor: Tensor) -> Tensor:
        saved.tensors += 1
        for storage in storages_of(tensor):
            if storage._cdata not in storages:
                storages[storage._cdata] = tensor.detach()
                saved.total += storage.nbytes()
        return tensor.detach()  # an output itself would hold its own graph, for ever

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved
    storages.clear()
