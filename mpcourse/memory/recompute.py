"""Recomputation (activation checkpointing): keep a part's input, run its forward again.

The forward of a part saves its inputs alone. Its backward runs the forward once more, this time
saving, and goes back through that. One more forward is paid for the bytes.

Source: Chen et al., 2016, arXiv:1604.06174; `torch.utils.checkpoint` does it for any function.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def recomputed(part: nn.Module, inputs: Tensor) -> Tensor:
    """Run a part of a model; autograd keeps its input, and the backward runs it once more.

    The second run draws the random numbers of the first and leaves the part's buffers as the first
    run left them: a dropout mask is the same, a batch norm counts a batch once.

    Args:
        part: Any module from one tensor to one tensor; its output must not share the input's
            storage when it changes it in place.
        inputs: Of any shape.
    """
    trained = [p for p in part.parameters() if p.requires_grad]
    return _Recompute.apply(part, inputs, *trained)


class _Recompute(torch.autograd.Function):
    """Parameters are inputs too: else a part whose input needs no gradient would get none."""

    @staticmethod
    def forward(ctx: Any, part: nn.Module, inputs: Tensor, *trained: Tensor) -> Tensor:
        ctx.part = part
        ctx.random, ctx.autocast = _random_states(inputs), _autocast_of(inputs)
        ctx.save_for_backward(inputs, *trained)
        return part(inputs)  # torch turns gradients off here: nothing else is saved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        inputs, *trained = ctx.saved_tensors
        inputs = inputs.detach().requires_grad_(ctx.needs_input_grad[1])
        wanted = [*([inputs] if inputs.requires_grad else []), *trained]
        with (
            _random_numbers_again(inputs, ctx.random),
            buffers_kept(ctx.part),
            torch.enable_grad(),
            torch.autocast(**ctx.autocast),
        ):
            outputs = ctx.part(inputs)
        found = torch.autograd.grad(outputs, wanted, gradient, allow_unused=True)
        return None, *([] if inputs.requires_grad else [None]), *found


def _random_states(inputs: Tensor) -> list[Tensor]:
    cuda = [torch.cuda.get_rng_state(inputs.device)] if inputs.is_cuda else []
    return [torch.get_rng_state(), *cuda]


def _autocast_of(inputs: Tensor) -> dict:
    kind = inputs.device.type
    return {
        "device_type": kind,
        "dtype": torch.get_autocast_dtype(kind),
        "enabled": torch.is_autocast_enabled(kind),
    }


@contextmanager
def _random_numbers_again(inputs: Tensor, states: Sequence[Tensor]) -> Iterator[None]:
    """Draw from these states within the context; afterwards go on as if nothing was drawn."""
    with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
        torch.set_rng_state(states[0])
        if inputs.is_cuda:
            torch.cuda.set_rng_state(states[1], inputs.device)
        yield


@contextmanager
def buffers_kept(part: nn.Module) -> Iterator[None]:
    """Whatever a forward does to the buffers, such as counting a batch, is undone at the end."""
    before = [(buffer, buffer.clone()) for buffer in part.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # `.data`: no version bump, so saved tensors stay valid


def _bounds(layers: int, count: int) -> list[int]:
    """Where segments of as many layers, up to one, begin and end."""
    if not 1 <= count <= layers:
        raise ValueError(f"count has to be from 1 to {layers} (the layers); got {count}")
    shorter, longer = divmod(layers, count)
    return [index * shorter + min(index, longer) for index in range(count + 1)]


def recomputed_bytes(layers: Sequence[int], inputs: Sequence[int], count: int) -> int:
    """Predict the activations held at the peak, when `count` segments are recomputed.

    All inputs of segments are kept until the backward reaches them. Going back through a segment,
    they are joined by what its layers save: the last segment still has all inputs beside it. The
    gradients on their way come on top, two tensors as large as an activation.

    Args:
        layers: Bytes that each layer saves in an ordinary forward besides its own input.
        inputs: Bytes of the input of each layer.
        count: How many segments, longer ones first.
    """
    if len(layers) != len(inputs):
        raise ValueError(
            f"each layer has one input; got {len(layers)} layers, {len(inputs)} inputs"
        )
    ends = _bounds(len(layers), count)
    kept = [sum(inputs[start] for start in ends[: index + 1]) for index in range(count)]
    return max(kept[i] + sum(layers[ends[i] : ends[i + 1]]) for i in range(count))


def best_segments(layers: Sequence[int], inputs: Sequence[int]) -> int:
    """The number of segments with the smallest predicted peak: about the root of the layers.

    With n equal layers whose inputs are as large as what they save, k segments hold k + n / k.
    """
    counts = range(1, len(layers) + 1)
    return min(counts, key=lambda count: recomputed_bytes(layers, inputs, count))
