"""Batch norm under micro-batches: what it normalises with, and what it remembers.

Page `train_mnist`.

In training a batch norm normalises each micro-batch with that micro-batch's own mean and variance,
and no cut changes that: smaller micro-batches are noisier ones. What can be put right is what the
layer *remembers* for evaluation. An ordinary layer moves its running statistics once per
micro-batch; the one here moves them once per mini-batch, by the statistics of all its values.
They are those of the unsplit layer if the layer's inputs are, which holds for the first batch norm
of a network; a deeper one sees what the first has normalised per micro-batch.

Source: torchgpipe/batchnorm.py (DeferredBatchNorm), which counts micro-batches to know the last.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from mpcourse.memory.checkpointing import runs_again

USED_TWICE = (
    "a deferred batch norm is used more than once in a forward, and knows one statistic a "
    "mini-batch: give each place a batch norm of its own, or leave this one ordinary"
)


@dataclass
class Seen:
    """Count, mean and sum of squared distances from it, per channel, of all values seen so far."""

    count: int
    mean: Tensor
    squares: Tensor

    def add(self, count: int, mean: Tensor, squares: Tensor) -> None:
        """Merge another group of values into this one (Chan, Golub, LeVeque 1979)."""
        total = self.count + count
        gap = mean - self.mean
        self.mean = self.mean + gap * (count / total)
        self.squares = self.squares + squares + gap.square() * (self.count * count / total)
        self.count = total


class DeferredBatchNorm(_BatchNorm):
    """A batch norm that can wait with its running statistics until the mini-batch is complete.

    Within `minibatch_statistics` it gathers; everywhere else it is an ordinary batch norm. It takes
    inputs of shape (N, C) or (N, C, ...), and its `state_dict` is that of the ordinary layer.
    """

    _awaited: int | None = None  # micro-batches that are still to come; None: it is ordinary
    _seen: Seen | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Normalise with the values' own statistics in training, with the running ones else."""
        remembers = self.track_running_stats and self.running_mean is not None
        if self._awaited is None or not (self.training and remembers):
            return super().forward(values)
        self._check_input_dim(values)
        output = F.batch_norm(values, None, None, self.weight, self.bias, True, eps=self.eps)
        if not runs_again():
            self._gather(values.detach())
        return output

    def _gather(self, values: Tensor) -> None:
        """Merge the statistics of the values, in float32 at least: sums of halves overflow."""
        if self._awaited == 0:
            raise RuntimeError(USED_TWICE)
        self._awaited -= 1
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        others = [dim for dim in range(values.dim()) if dim != 1]
        variance, mean = torch.var_mean(values, others, correction=0)
        count = values.numel() // values.size(1)
        if self._seen is None:
            self._seen = Seen(0, torch.zeros_like(mean), torch.zeros_like(variance))
        self._seen.add(count, mean, variance * count)

    def start(self, num_microbatches: int) -> None:
        """Gather from now on."""
        self._awaited, self._seen = num_microbatches, None

    def finish(self, *, keep: bool) -> None:
        """Stop gathering; move the running statistics by what was gathered, or drop it."""
        seen, self._awaited, self._seen = self._seen, None, None
        if keep and seen is not None:
            self._remember(seen.mean, seen.squares / (seen.count - 1))

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:  # torch's sign for the plain average over all mini-batches
            share = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)

    def _check_input_dim(self, values: Tensor) -> None:
        if values.dim() < 2:
            raise ValueError(f"expected values of shape (N, C, ...); got {tuple(values.shape)}")


def defer_batch_norms(model: nn.Module) -> nn.Module:
    """Make every batch norm in `model` a deferred one; tensors, hooks and modes stay.

    The model is changed in place and returned. What looks like a batch norm but is a class of its
    own (SyncBatchNorm, lazy ones) stays as it is.
    """
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module.__class__ = DeferredBatchNorm
    return model


@contextlib.contextmanager
def minibatch_statistics(model: nn.Module, num_microbatches: int) -> Iterator[None]:
    """While this lasts, all that the deferred batch norms in `model` see is one mini-batch.

    `Pipeline.step` does this by itself. An error within leaves the running statistics as they were.
    """
    layers = [module for module in model.modules() if isinstance(module, DeferredBatchNorm)]
    if any(layer._awaited is not None for layer in layers):
        raise RuntimeError("its batch norms are in the midst of another mini-batch: step in turn")
    for layer in layers:
        layer.start(num_microbatches)
    complete = False
    try:
        yield
        complete = True
    finally:
        for layer in layers:
            layer.finish(keep=complete)
