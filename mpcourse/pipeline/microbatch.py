"""Cut a mini-batch into micro-batches; put outputs and losses together again (page `pipeline`).

A mean over samples is the mean of the micro-batches' means only when each counts by its number of
samples. A mean over something else (class weights, ignored targets) needs shares from the caller.
Source: torch/distributed/pipelining/microbatch.py, which cuts by a count only.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy, nll_loss
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from mpcourse.data_parallel.scatter_gather import refuse_hidden_tensors
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
    """The size in dimension 0 that all tensors of a mini-batch share."""
    leaves = tree_leaves(minibatch, _is_packed)
    for leaf in leaves:
        refuse_hidden_tensors(leaf)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise ValueError("the mini-batch holds no tensor to cut")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("a tensor of 0 dimensions has no samples; pass a plain number instead")
    sizes = {tensor.size(0) for tensor in tensors}
    if len(sizes) > 1:
        raise ValueError(f"the tensors hold different numbers of samples: {sorted(sizes)}")
    return sizes.pop()


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def split_minibatch(minibatch: Any, sizes: Sequence[int]) -> list[Any]:
    """Cut every tensor in `minibatch` along dimension 0 into views of these sizes.

    What is no tensor goes into every micro-batch.
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
    """
    if len(outputs) == 0:
        raise ValueError("outputs is empty; there is nothing to merge")
    flat = [tree_flatten(output, _is_packed) for output in outputs]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise ValueError("the outputs of the micro-batches differ in structure")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return tree_unflatten([_merged(column) for column in columns], structure)


def _merged(column: Sequence[Any]) -> Any:
    first = column[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(column) if first.dim() else torch.stack(column)
    refuse_hidden_tensors(first)
    if all(other is first or other == first for other in column[1:]):
        return first
    raise ValueError(f"the micro-batches return {list(column)}: make tensors of them, or leave out")


def bring_to(value: Any, place: torch.device) -> Any:
    """The same tensor, or nest of tensors, on a device; what is there already is not copied."""
    if isinstance(value, torch.Tensor):
        return value if value.device == place else value.to(place)
    return tree_map(lambda leaf: leaf.to(place) if isinstance(leaf, torch.Tensor) else leaf, value)


REDUCTIONS = ("mean", "sum")


def microbatch_shares(
    loss_fn: Callable[..., Any],
    targets: Any,
    sizes: Sequence[int],
    *,
    reduction: str | None = None,
    shares: Sequence[float] | None = None,
) -> list[float]:
    """By how much the loss of each micro-batch counts.

    Args:
        loss_fn: The loss; its `reduction` is read from it, or from its signature.
        targets: Of the whole mini-batch; read only to see whether targets are ignored.
        sizes: Samples of each micro-batch.
        reduction: "mean" or "sum", for a loss that does not say.
        shares: The answer itself, one number per micro-batch, where the mean is not one over
            samples.

    Raises:
        ValueError: The reduction is unknown or "none"; or the loss is a mean over something other
            than samples and `shares` is not given; or there are more or fewer shares than
            micro-batches.
    """
    if shares is not None:
        if len(shares) != len(sizes):
            raise ValueError(f"{len(sizes)} micro-batches need a share each; got {len(shares)}")
        return [float(share) for share in shares]
    if reduction_of(loss_fn, targets, reduction) == "sum":
        return [1.0] * len(sizes)
    return [size / sum(sizes) for size in sizes]


def reduction_of(loss_fn: Callable[..., Any], targets: Any, reduction: str | None = None) -> str:
    """How the losses of parts of a batch add up: "mean" (over samples) or "sum".

    Read from the loss; `reduction` is for one that does not say. A mean over something other than
    samples is refused; the targets are read only to see whether any is ignored.
    """
    said = _said_by(loss_fn)
    if reduction and said in REDUCTIONS and said != reduction:
        raise ValueError(f"the loss is reduced by {said!r}, as it says itself; got {reduction!r}")
    reduction = reduction or said
    if reduction not in REDUCTIONS:
        raise ValueError(
            f'the loss must say how it is reduced; got {reduction!r}; pass reduction="mean" or '
            'reduction="sum"'
        )
    reason = _other_mean(loss_fn, targets) if reduction == "mean" else None
    if reason:
        raise ValueError(
            f"{reason}, so its mean is not one over samples; take a plain mean or a sum, or pass "
            "microbatch_shares to a step: each micro-batch's part of what the mean divides by"
        )
    return reduction


def _said_by(loss_fn: Callable[..., Any]) -> str | None:
    """What the loss says: a module by its attribute, a function of torch's by its default."""
    said = getattr(_inner(loss_fn), "reduction", None)
    if said is not None:
        return said
    try:
        parameter = inspect.signature(loss_fn).parameters.get("reduction")
    except (TypeError, ValueError):
        return None
    return parameter.default if parameter is not None else None


def _inner(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """The loss inside `functools.partial`, which flattens partials of partials itself."""
    return loss_fn.func if isinstance(loss_fn, functools.partial) else loss_fn


CLASS_LOSSES = (cross_entropy, nll_loss)
CLASS_LOSS_MODULES = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)


def _other_mean(loss_fn: Callable[..., Any], targets: Any) -> str | None:
    """Why the mean of this loss is not one over samples, if so."""
    inner = _inner(loss_fn)
    if inner in CLASS_LOSSES:
        arguments = inspect.signature(loss_fn).parameters
        weight, ignored = (arguments[name].default for name in ("weight", "ignore_index"))
    elif isinstance(inner, CLASS_LOSS_MODULES):
        weight, ignored = inner.weight, inner.ignore_index
    else:
        weight, ignored = None, getattr(inner, "ignore_index", None)
    if weight is not None:
        return "the loss has class weights"
    if ignored is None:
        return None
    for target in tree_leaves(targets):
        is_classes = isinstance(target, torch.Tensor) and not target.is_floating_point()
        if is_classes and bool((target == ignored).any()):
            return f"the targets hold ignore_index={ignored}"
    return None
