"""Cut a mini-batch into micro-batches, and put the outputs together again (page `pipeline`).

Source: torch/distributed/pipelining/microbatch.py, which cuts by a count only.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from mpcourse.schedules.actions import check_count


def microbatch_sizes(
    num_samples: int, *, num_microbatches: int | None = None, microbatch_size: int | None = None
) -> list[int]:
    """How many samples each micro-batch has; exactly one of the two last arguments is given.

    Args:
        num_samples: Samples in the mini-batch, 1 or more.
        num_microbatches: A count: sizes differ by at most one, larger ones first. More than there
            are samples gives one sample each.
        microbatch_size: A size: the last micro-batch may be smaller.

    Raises:
        ValueError: There are no samples, both or neither of the two are given, or one is below 1.
        TypeError: One is no whole number.
    """
    given = {"num_microbatches": num_microbatches, "microbatch_size": microbatch_size}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        raise ValueError(f"give exactly one of num_microbatches and microbatch_size; got {chosen}")
    ((name, value),) = chosen.items()
    check_count(name, value)
    if num_samples < 1:
        raise ValueError("the mini-batch is empty: a step needs at least one sample")
    if name == "microbatch_size":
        full, rest = divmod(num_samples, value)
        return [value] * full + [rest] * (rest > 0)
    small, larger = divmod(num_samples, min(value, num_samples))
    return [small + 1] * larger + [small] * (min(value, num_samples) - larger)


def num_samples_of(minibatch: Any) -> int:
    """The size in dimension 0 that all tensors in `minibatch` share.

    Args:
        minibatch: A tensor, or a tuple, list or dict that holds tensors.

    Raises:
        ValueError: There is no tensor, one has no dimension, or their sizes differ.
        TypeError: It holds a dataclass, which would reach every micro-batch whole.
    """
    leaves = tree_leaves(minibatch)
    whole = next((leaf for leaf in leaves if dataclasses.is_dataclass(leaf)), None)
    if whole is not None:
        name = getattr(whole, "__name__", type(whole).__name__)
        raise TypeError(f"a dataclass ({name}) is not taken apart: pass its fields in a dict")
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise ValueError("the mini-batch holds no tensor to cut")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("a tensor of 0 dimensions has no samples; pass a plain number instead")
    sizes = {tensor.size(0) for tensor in tensors}
    if len(sizes) > 1:
        raise ValueError(f"the tensors hold different numbers of samples: {sorted(sizes)}")
    return sizes.pop()


def split_minibatch(minibatch: Any, sizes: Sequence[int]) -> list[Any]:
    """Cut every tensor in `minibatch` along dimension 0.

    Args:
        minibatch: A tensor of shape (N, ...), or a nest of them; what is no tensor goes into every
            micro-batch.
        sizes: Samples of each micro-batch; their sum is N.

    Returns:
        One value like `minibatch` per size. Tensors are views: nothing is copied.
    """
    if isinstance(minibatch, torch.Tensor):
        return list(minibatch.split(list(sizes)))
    leaves, structure = tree_flatten(minibatch)
    columns = [
        leaf.split(list(sizes)) if isinstance(leaf, torch.Tensor) else [leaf] * len(sizes)
        for leaf in leaves
    ]
    return [tree_unflatten(list(row), structure) for row in zip(*columns, strict=True)]


def merge_microbatches(outputs: Sequence[Any]) -> Any:
    """Join the outputs of all micro-batches along dimension 0, field by field.

    Tensors of 0 dimensions (a loss each) become a vector.

    Args:
        outputs: One value per micro-batch, all of the same structure, in order.

    Raises:
        ValueError: `outputs` is empty, the structures differ, or a field that is no tensor does.
    """
    if len(outputs) == 0:
        raise ValueError("outputs is empty; there is nothing to merge")
    flat = [tree_flatten(output) for output in outputs]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise ValueError("the outputs of the micro-batches differ in structure")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return tree_unflatten([_merged(column) for column in columns], structure)


def _merged(column: Sequence[Any]) -> Any:
    first = column[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(column) if first.dim() else torch.stack(column)
    if all(other is first or other == first for other in column[1:]):
        return first
    raise ValueError(f"the micro-batches return {list(column)}: make tensors of them, or leave out")


def bring_to(value: Any, place: torch.device) -> Any:
    """The same tensor, or nest of tensors, on a device; what is there already is not copied."""
    if isinstance(value, torch.Tensor):
        return value if value.device == place else value.to(place)
    return tree_map(lambda leaf: leaf.to(place) if isinstance(leaf, torch.Tensor) else leaf, value)
