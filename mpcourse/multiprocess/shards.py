"""A tensor cut into equal parts, one for each rank: whole again by all-gather, summed by parts.

The numbers of a tensor, in a row, are cut into as many parts as there are ranks. All parts but the
last ones have the same length; those are shorter, or empty. Messages are padded to equal lengths.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.nn.functional import pad


def place_of(group: ProcessGroup | None) -> tuple[int, int]:
    """This process's rank in a group (the default one for None), and how many ranks it has.

    Raises:
        RuntimeError: There is no process group yet.
    """
    if group is not None:
        return group.rank(), group.size()
    if not distributed.is_initialized():
        raise RuntimeError("there is no process group: call init_process_group first")
    return distributed.get_rank(), distributed.get_world_size()


def part_length(numbers: int, ranks: int) -> int:
    """Of a full part: the numbers shared out, rounded up."""
    return -(-numbers // ranks)


def part_of(flat: Tensor, rank: int, ranks: int) -> Tensor:
    """The part of one rank, a view; shorter or empty at the end.

    Args:
        flat: Of one dimension.
        rank: Whose.
        ranks: How many there are.
    """
    length = part_length(flat.numel(), ranks)
    return flat[rank * length : (rank + 1) * length]


def flat(tensor: Tensor) -> Tensor:
    """The numbers of a tensor in the order in which they lie in memory, a view.

    Raises:
        ValueError: They do not lie side by side.
    """
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() and reach + 1 != tensor.numel():
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has gaps in "
            "memory: pass a contiguous one"
        )
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def gather_parts(part: Tensor, numbers: int, group: ProcessGroup | None) -> Tensor:
    """Join the parts of all ranks; every rank calls it and gets the same.

    Args:
        part: This rank's, of one dimension.
        numbers: Of the whole tensor.
        group: Of the ranks.

    Returns:
        Shape (numbers,).
    """
    _, ranks = place_of(group)
    length = part_length(numbers, ranks)
    whole = part.new_empty(length * ranks)
    distributed.all_gather_into_tensor(whole, _padded(part, length), group=group)
    return whole[:numbers]


def _padded(numbers: Tensor, length: int) -> Tensor:
    short = length - numbers.numel()
    return (pad(numbers, (0, short)) if short else numbers).detach().contiguous()


class PartAverages:
    """Reduce-scatters on their way: gradients go in whole, parts of their average come out.

    One is on its way while the next gradient is computed; so at most two whole gradients are held.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self._rank, self._ranks = place_of(group)
        self._sent: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """How many have been sent and not been waited for."""
        return len(self._sent)

    def send(self, gradient: Tensor, arrived: Callable[[Tensor], None]) -> None:
        """Begin to average a gradient over the ranks, which all do so in the same order.

        Args:
            gradient: This rank's, of one dimension.
            arrived: Called with this rank's part of the average, at the latest in `settle`.
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
        """Wait until at most `keep` of them are on their way."""
        while len(self._sent) > keep:
            self._sent.pop(0)()


def check_same(described: Sequence[str], device: torch.device, group: ProcessGroup | None) -> None:
    """See that all ranks give the same list; every rank calls it.

    Args:
        described: One line for each parameter, in order.
        device: Of messages between these ranks.
        group: Of the ranks.

    Raises:
        ValueError: Two ranks differ; the first difference is named, on every rank alike.
    """
    mine = torch.tensor(list("\n".join(described).encode()), dtype=torch.uint8, device=device)
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
