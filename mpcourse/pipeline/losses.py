"""How the losses of micro-batches add up to the loss of the mini-batch (page `pipeline`).

A mean over samples is the mean of the micro-batches' means only when each counts by its number of
samples. A mean over something else (class weights, ignored targets) needs shares from the caller.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

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

    Args:
        loss_fn: The loss; its `reduction` is read from it, or from its signature.
        targets: Read only to see whether targets are ignored.
        reduction: For a loss that does not say.

    Raises:
        ValueError: The reduction is unknown or "none"; or it is a mean over something other than
            samples.
    """
    reduction = reduction or _said_by(loss_fn)
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


CLASS_LOSSES = (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)
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
