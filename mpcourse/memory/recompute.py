"""Recomputation (activation checkpointing): keep a part's input, run its forward again.

The forward of a part saves its inputs alone. Its backward runs the forward once more, this time
saving, and goes back through that. One more forward is paid for the bytes.

Source: Chen et al., 2016, arXiv:1604.06174; `torch.utils.checkpoint` does it for any function.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from mpcourse.devices.workers import on_a_worker
from mpcourse.memory.checkpointing import CheckpointedForward, watched_draws

FIRST_DERIVATIVES = (
    "recomputed gives first derivatives alone, and create_graph=True asks for second ones: call "
    "the part itself, or torch.utils.checkpoint.checkpoint(part, inputs, use_reentrant=False)"
)
READS_MORE = (
    "the recomputed part reads a tensor that wants a gradient and is not among its parameters (as "
    "the weights of a replica), so it would get none: make it a parameter, or do not recompute"
)
BESIDE_OTHERS = (
    "random numbers are drawn in a recomputed part on a worker, and other workers draw from the "
    "same generator: recompute the stage, Pipeline(..., recompute=True), or use ReproducibleDropout"
)


def recomputed(part: nn.Module, inputs: Tensor) -> Tensor:
    """Run a part of a model; autograd keeps its input, and the backward runs it once more.

    The second run draws the random numbers of the first and begins with the buffers that the first
    one found: a dropout mask is the same, a batch norm counts a batch once.

    Args:
        part: Any module from one tensor to one tensor, with first derivatives alone.
        inputs: Of any shape.

    Raises:
        TypeError: The part gives something else than a tensor.
        RuntimeError: The part changes its input in place, or draws random numbers beside workers
            that draw from the same generator; in the backward: it draws random numbers
            in a part that is recomputed too, it reads a weight that is not among its parameters,
            or `create_graph=True` asks for second derivatives.
    """
    trained = [p for p in part.parameters() if p.requires_grad]
    return _Recompute.apply(part, inputs, *trained)


class _Recompute(torch.autograd.Function):
    """Parameters are inputs too: else a part whose input needs no gradient would get none."""

    @staticmethod
    def forward(ctx: Any, part: nn.Module, inputs: Tensor, *trained: Tensor) -> Tensor:
        ctx.part, ctx.run = part, CheckpointedForward(part)
        ctx.autocast = _autocast_of(inputs)
        ctx.save_for_backward(inputs, *trained)
        unwatched = on_a_worker() and not watched_draws()
        # torch turns gradients off here: nothing else is saved
        output = ctx.run.first(lambda: part(inputs), [inputs])
        if not isinstance(output, Tensor):
            given = f"{type(part).__name__} gives a {type(output).__name__}"
            raise TypeError(f"a recomputed part goes from one tensor to one tensor; {given}")
        if unwatched and ctx.run.drew_what_others_draw():
            raise RuntimeError(BESIDE_OTHERS)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        if torch.is_grad_enabled():
            raise RuntimeError(FIRST_DERIVATIVES)
        inputs, *trained = ctx.saved_tensors
        inputs = inputs.detach().requires_grad_(ctx.needs_input_grad[1])
        wanted = [*([inputs] if inputs.requires_grad else []), *trained]
        with torch.enable_grad(), torch.autocast(**ctx.autocast):
            outputs = ctx.run.again(lambda: ctx.part(inputs))
        if not leaves_of(outputs) <= set(wanted):
            raise RuntimeError(READS_MORE)
        with ctx.run.around_backward():
            found = torch.autograd.grad(outputs, wanted, gradient, allow_unused=True)
        return None, *([] if inputs.requires_grad else [None]), *found


def leaves_of(output: Tensor) -> set[Tensor]:
    """Where a backward from this tensor would leave gradients."""
    found = {node.variable for node in nodes_of(output) if hasattr(node, "variable")}
    return found | ({output} if output.is_leaf and output.requires_grad else set())


def nodes_of(output: Tensor) -> set[Node]:
    """The graph that a backward from this tensor would go through."""
    nodes, todo = set(), [output.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            todo += [following for following, _ in node.next_functions]
    return nodes


def _autocast_of(inputs: Tensor) -> dict:
    kind = inputs.device.type
    return {
        "device_type": kind,
        "dtype": torch.get_autocast_dtype(kind),
        "enabled": torch.is_autocast_enabled(kind),
    }
