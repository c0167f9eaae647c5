"""Train and evaluate on a loader: the same lines for a plain model and for a pipeline.

Page `train_mnist`.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from mpcourse.pipeline.microbatch import num_samples_of, reduction_of
from mpcourse.pipeline.pipeline import Pipeline

Loss = Callable[[Any, Any], Tensor]
Batches = Iterable[tuple[Any, Any]]


class Epoch(NamedTuple):
    """What an epoch of training has seen."""

    losses: list[float]  # of each step, before the step
    num_samples: int


class Evaluation(NamedTuple):
    """How a model does on a whole data set."""

    loss: float  # over all samples, reduced as the loss function says
    accuracy: float  # the share of samples whose largest output is the right class
    num_samples: int


def train_epoch(
    model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer, loss_fn: Loss
) -> Epoch:
    """Go once through the loader, one optimizer step per mini-batch, in training mode.

    Args:
        model: A module, or a `Pipeline`; it is left in training mode.
        loader: Yields (inputs, targets), on any device.
        optimizer: Of the model's parameters.
        loss_fn: `loss_fn(output, target)` gives a loss of 0 dimensions.
    """
    model.train()
    losses, num_samples = [], 0
    for inputs, targets in loader:
        num_samples += _samples_of(inputs, targets)
        optimizer.zero_grad()
        losses.append(_backward(model, inputs, targets, loss_fn))
        optimizer.step()
    _refuse_nothing(num_samples)
    return Epoch([loss.item() for loss in losses], num_samples)  # reading each loss would wait


def _backward(model: nn.Module, inputs: Any, targets: Any, loss_fn: Loss) -> Tensor:
    """Forward and backward of one mini-batch; what the two kinds of model differ in."""
    if isinstance(model, Pipeline):
        return model.step(inputs, targets, loss_fn)
    output = model(_to(inputs, _place_of(model)))
    loss = loss_fn(output, _to(targets, output.device))
    loss.backward()
    return loss.detach()


@torch.no_grad()
def evaluate(model: nn.Module, loader: Batches, loss_fn: Loss) -> Evaluation:
    """Run the model over a data set in evaluation mode, without gradients.

    Every batch counts by its samples, so the last one may be smaller.

    Args:
        model: A module, or a `Pipeline`, with outputs of shape (N, classes). Each of its modules is
            left in the mode in which it was.
        loader: Yields (inputs, targets), on any device; targets are class numbers of shape (N,).
        loss_fn: A mean over samples or a sum; which one is read from it.
    """
    total, right, num_samples = 0.0, 0, 0
    with evaluation_mode(model):
        for inputs, targets in loader:
            count = _samples_of(inputs, targets)
            if targets.dim() != 1 or targets.is_floating_point():
                given = f"{targets.dtype} of shape {tuple(targets.shape)}"
                raise ValueError(f"targets are class numbers of shape (N,); got {given}")
            is_mean = reduction_of(loss_fn, targets) == "mean"
            output = model(_to(inputs, _place_of(model)))
            targets = targets.to(output.device)
            total += loss_fn(output, targets).item() * (count if is_mean else 1)
            right += (output.argmax(dim=1) == targets).sum().item()
            num_samples += count
    _refuse_nothing(num_samples)
    return Evaluation(total / num_samples if is_mean else total, right / num_samples, num_samples)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and each of its modules back into its own mode after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _place_of(model: nn.Module) -> torch.device | None:
    """Where the model's inputs have to be: beside its first tensor, if it has one."""
    tensors = itertools.chain(model.parameters(), model.buffers())  # int8 nets have buffers only
    return next((tensor.device for tensor in tensors), None)


def _to(value: Any, place: torch.device | None) -> Any:
    return tree_map(lambda leaf: leaf.to(place) if isinstance(leaf, Tensor) else leaf, value)


def _samples_of(inputs: Any, targets: Any) -> int:
    if count := num_samples_of((inputs, targets)):
        return count
    raise ValueError("a batch is empty: its loss would be a mean over nothing")


def _refuse_nothing(num_samples: int) -> None:
    if num_samples == 0:
        raise ValueError("the loader has no batches: an epoch needs at least one sample")
