"""A tensor cut into parts, one for each rank: all-gather joins them, reduce-scatter sums them.

The flattened tensor is cut into as many parts as there are ranks. All have the same length, but for
the last ones, which are shorter or empty; messages are padded to the full length.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.nn.functional import pad
from torch.nn.utils import get_total_norm
from torch.utils.weak import WeakTensorKeyDictionary


def place_of(group: ProcessGroup | None) -> tuple[int, int]:
    """This process's rank in a group (the default one for None), and how many ranks it has."""
    if group is not None:
        return group.rank(), group.size()
    if not distributed.is_initialized():
        raise RuntimeError("there is no process group: call init_process_group first")
    return distributed.get_rank(), distributed.get_world_size()


def part_length(numbers: int, ranks: int) -> int:
    """How long a full part is: numbers / ranks, rounded up."""
    return -(-numbers // ranks)


def part_of(flat: Tensor, rank: int, ranks: int) -> Tensor:
    """One rank's part of a one-dimensional tensor, a view."""
    length = part_length(flat.numel(), ranks)
    return flat[rank * length : (rank + 1) * length]


def flat(tensor: Tensor) -> Tensor:
    """The tensor as one dimension, in the order of memory, a view; gaps are refused."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() and reach + 1 != tensor.numel():
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has gaps in "
            "memory: pass a contiguous one"
        )
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def gather_parts(part: Tensor, numbers: int, group: ProcessGroup | None) -> Tensor:
    """Join the parts of all ranks into shape (numbers,); every rank calls it."""
    _, ranks = place_of(group)
    length = part_length(numbers, ranks)
    whole = part.new_empty(length * ranks)
    distributed.all_gather_into_tensor(whole, _padded(part, length), group=group)
    return whole[:numbers]


def _padded(numbers: Tensor, length: int) -> Tensor:
    short = length - numbers.numel()
    return (pad(numbers, (0, short)) if short else numbers).detach().contiguous()


class PartAverages:
    """Reduce-scatters in flight: whole gradients go in, this rank's parts of the averages come out.

    One is in flight while the next gradient is computed, so at most two whole gradients are alive.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self._rank, self._ranks = place_of(group)
        self._sent: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """How many are in flight."""
        return len(self._sent)

    def send(self, gradient: Tensor, arrived: Callable[[Tensor], None]) -> None:
        """Begin to average a flat gradient; `arrived` gets this rank's part, in `settle` at last.

        All ranks send in the same order.
        """
        self.settle(keep=1)
        numbers = gradient.numel()
        length = part_length(numbers, self._ranks)
        whole, part = _padded(gradient, length * self._ranks), gradient.new_empty(length)
        request = distributed.reduce_scatter_tensor(part, whole, group=self._group, async_op=True)
        own = max(0, min(length, numbers - self._rank * length))

        def finish(whole: Tensor = whole) -> None:  # the message reads it until then
            request.wait()
            arrived(part[:own].div_(self._ranks))

        self._sent.append(finish)

    def settle(self, keep: int = 0) -> None:
        """Wait until at most `keep` are in flight."""
        while len(self._sent) > keep:
            self._sent.pop(0)()


class GradientHooks:
    """Of each parameter, the one method that is called when a backward has its gradient.

    A later one takes the place of an earlier one, as two would average twice. Methods are held
    weakly: an optimizer that is deleted lets go of the gradients.
    """

    def __init__(self) -> None:
        self._hooks = WeakTensorKeyDictionary()

    def put(self, parameter: Tensor, method: Callable[[Tensor], None]) -> None:
        """Call the method from now on; of a frozen parameter, when it is trained again."""
        self.remove(parameter)
        if not (parameter.is_floating_point() or parameter.is_complex()):
            return  # it never has a gradient
        weak, is_trained = WeakMethod(method), parameter.requires_grad

        def call(parameter: Tensor) -> None:
            method = weak()
            if method is not None and parameter.grad is not None:  # as another hook may take it
                method(parameter)

        parameter.requires_grad_(True)  # a frozen one takes no hook
        handle = parameter.register_post_accumulate_grad_hook(call)
        parameter.requires_grad_(is_trained)
        self._hooks[parameter] = weak, handle

    def remove(self, parameter: Tensor) -> None:
        """Call nothing any more."""
        if parameter in self._hooks:
            _, handle = self._hooks.pop(parameter)
            handle.remove()

    def owner(self, parameter: Tensor) -> Any:
        """Whose method is called, or None."""
        weak, _ = self._hooks.get(parameter, (lambda: None, None))
        return getattr(weak(), "__self__", None)


def clip_parts(gradients: Iterable[Tensor], max_norm: float, group: ProcessGroup | None) -> Tensor:
    """What `torch.nn.utils.clip_grad_norm_` does, of gradients of which each rank has its part.

    Every rank calls it. Returns the norm over all ranks as it was.
    """
    gradients = list(gradients)
    square = get_total_norm(gradients).double().square()
    distributed.all_reduce(square, group=group)
    norm = square.sqrt()
    for gradient in gradients:
        gradient *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm


def check_whole(parameters: Iterable[Tensor]) -> None:
    """Refuse parts of a `FullySharded` module: each rank has other numbers under the same name."""
    if any(getattr(parameter, "is_part", False) for parameter in parameters):
        raise ValueError(
            "these parameters are parts of a FullySharded module already: give them to an "
            "optimizer of torch's, or make the module anew"
        )


def check_no_graph(gradient: Tensor) -> None:
    """Refuse a gradient with a graph of its own, which the average would not have."""
    if gradient.requires_grad:
        raise RuntimeError(
            "backward(create_graph=True): gradients averaged over ranks have no second derivative"
        )


def check_same(lines: Sequence[str], device: torch.device, group: ProcessGroup | None) -> None:
    """Refuse, on every rank, lists of a line for each parameter that differ; name the first."""
    mine = torch.tensor(list("\n".join(lines).encode()), dtype=torch.uint8, device=device)
    _, ranks = place_of(group)
    lengths = torch.empty(ranks, dtype=torch.int64, device=device)
    own_length = torch.tensor([len(mine)], device=device)
    distributed.all_gather_into_tensor(lengths, own_length, group=group)
    longest = int(lengths.max())
    texts = mine.new_empty(ranks * longest)
    distributed.all_gather_into_tensor(texts, _padded(mine, longest), group=group)
    lists = [
        bytes(row[:length].tolist()).decode().split("\n")
        for row, length in zip(texts.view(ranks, longest), lengths.tolist(), strict=True)
    ]
    for rank, other in enumerate(lists):
        for index in range(max(len(lists[0]), len(other))):
            first, its = (
                (lines[index : index + 1] or ["nothing"])[0] for lines in (lists[0], other)
            )
            if first != its:
                raise ValueError(
                    f"the ranks have different parameters: number {index} is {first} on rank 0 and "
                    f"{its} on rank {rank}"
                )
