"""One stage of a pipeline and what it keeps between its forwards and its backwards.

Page `pipeline`.

The graph is cut at the stage's edges: its input is a leaf, its output is handed on detached, and
the gradient comes back by itself. So each stage's backward runs where and when the schedule says.
Source: torch/distributed/pipelining/stage.py and _backward.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from mpcourse.data_parallel.scatter_gather import refuse_hidden_tensors
from mpcourse.devices.workers import add_note
from mpcourse.memory.checkpointing import CheckpointedForward, WatchDraws
from mpcourse.pipeline.put_off import run_inputs, run_weights

Loss = Callable[[Any], Tensor]
Gradients = list[Tensor | None]  # one per leaf of an input or output; None: no gradient
Roots = tuple[list[Tensor], Gradients]  # where a backward begins; None: a loss, whose gradient is 1

BEGINS_IN_PLACE = (
    "the stage begins with an operation in place, which would overwrite the leaf that its gradient "
    "arrives at: cut one layer earlier, or use inplace=False"
)


@dataclass(slots=True)
class InFlight:
    """What a stage keeps of a micro-batch until its backward is done."""

    inputs: list[Any]  # the leaves; gradients arrive at the tensors that require them
    outputs: list[Any]  # the leaves, with their graph; none if there is a `checkpoint`
    checkpoint: CheckpointedForward | None = None  # how to make the outputs once more
    run: Callable[[], Any] | None = None  # what makes them
    rest: Callable[[], None] | None = None  # between I and W: what W does

    def made(self) -> list[Any]:
        """The outputs; where they were not kept they are made once more."""
        if self.checkpoint is None:
            return self.outputs
        return _flatten(self.checkpoint.again(self.run))[0]

    def around_backward(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call what runs a backward, or a half of one."""
        if self.checkpoint is None:
            return fn(*args)
        with self.checkpoint.around_backward():
            return fn(*args)


class Stage:
    """A module, and the micro-batches that are in flight in it.

    Args:
        module: The stage's layers.
        is_first: Its input is data: nobody waits for its gradient.
        recompute: Keep a micro-batch's input alone, and run its forward again at B or I.
        beside_others: Stages of other threads recompute: their random numbers are drawn under one
            lock, and this one's too.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        is_first: bool,
        recompute: bool = False,
        beside_others: bool = False,
    ) -> None:
        self.module = module
        self.is_first = is_first
        self.recompute = recompute
        self.beside_others = beside_others
        self.in_flight: dict[int, InFlight] = {}

    def forward(self, index: int, value: Any, loss: Loss | None = None) -> Any:
        """F: run the module on micro-batch `index`, keep what its backward needs.

        `loss`, for the last stage, makes the loss of the output. What is returned is detached.
        """
        inputs, structure = _flatten(value)
        if not self.is_first:
            inputs = [leaf if _is_leaf(leaf) else _cut_off(leaf) for leaf in inputs]
            value = _unflatten(inputs, structure)
        if self.recompute:
            run, checkpoint = partial(self._run, value, loss), CheckpointedForward(self.module)
            # the graph says what requires a gradient, but holds no tensor
            with saved_tensors_hooks(_save_nothing, _save_nothing):
                outputs, structure = _flatten(checkpoint.first(run, inputs))
            self.in_flight[index] = InFlight(inputs, [], checkpoint, run)
        else:
            run = self._run_watched if self.beside_others else self._run
            outputs, structure = _flatten(run(value, loss))
            self.in_flight[index] = InFlight(inputs, outputs)
        return _unflatten([_cut_off(leaf) for leaf in outputs], structure)

    def _run(self, value: Any, loss: Loss | None) -> Any:
        try:
            output = self.module(value)
        except RuntimeError as error:
            if "leaf Variable that requires grad is being used in an in-place" in str(error):
                add_note(error, BEGINS_IN_PLACE)
            raise
        return output if loss is None else loss(output)

    def _run_watched(self, value: Any, loss: Loss | None) -> Any:
        with WatchDraws(lambda _: None):
            return self._run(value, loss)

    def run_backward(self, kind: str, index: int, gradients: Gradients | None) -> Gradients | None:
        """B, I or W of micro-batch `index`."""
        if kind == "B":
            return self.backward(index, gradients)
        return (self.backward_input if kind == "I" else self.backward_weight)(index, gradients)

    def backward(self, index: int, gradients: Gradients | None) -> Gradients:
        """B: add to the weights' gradients, return the input's.

        `gradients` has one of each leaf of the output; None for the last stage: its output is the
        loss.
        """
        state = self.in_flight.pop(index)
        roots, gradients = _roots(state.made(), gradients)
        if roots:
            state.around_backward(torch.autograd.backward, roots, gradients)
        return self._input_gradients(state)

    def backward_input(self, index: int, gradients: Gradients | None) -> Gradients:
        """I: return the input's gradient and leave the weights' for `backward_weight`.

        A stage that makes no input gradient leaves all the work to W: the first one, and one whose
        input requires none.
        """
        state = self.in_flight[index]
        roots, gradients = _roots(state.made(), gradients)
        state.outputs = []
        wanted = [] if self.is_first else [leaf for leaf in state.inputs if _wants(leaf)]
        if roots and wanted:
            left = state.around_backward(run_inputs, roots, gradients, wanted)
            state.rest = partial(run_weights, left)
        elif roots:
            state.rest = partial(torch.autograd.backward, roots, gradients)
        return self._input_gradients(state)

    def backward_weight(self, index: int, _: None = None) -> None:
        """W: add to the weights' gradients what `backward_input` left; it takes in nothing."""
        state = self.in_flight.pop(index)
        if state.rest is not None:
            state.around_backward(state.rest)

    def _input_gradients(self, state: InFlight) -> Gradients:
        if self.is_first:
            return []
        return [leaf.grad if isinstance(leaf, Tensor) else None for leaf in state.inputs]


def _save_nothing(_: Tensor) -> None:
    return None


def _wants(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _flatten(value: Any) -> tuple[list[Any], TreeSpec | None]:
    """The leaves of a nest and its structure; a tensor alone, the usual case, needs no tree."""
    return ([value], None) if isinstance(value, Tensor) else tree_flatten(value)


def _unflatten(leaves: list[Any], structure: TreeSpec | None) -> Any:
    return leaves[0] if structure is None else tree_unflatten(leaves, structure)


def _cut_off(value: Any) -> Any:
    """The same numbers without their graph; a gradient is wanted of them if it was before."""
    if not isinstance(value, Tensor):
        refuse_hidden_tensors(value)  # their graph would not be cut
        return value
    cut = value.detach()
    return cut.requires_grad_() if value.requires_grad else cut


def _is_leaf(value: Any) -> bool:
    """True for a detached tensor; a copy to another device is not a leaf."""
    return not isinstance(value, Tensor) or value.is_leaf


def _roots(outputs: list[Any], gradients: Gradients | None) -> Roots:
    """Where a backward begins: the outputs that have a gradient, with theirs."""
    if gradients is None:
        roots = [output for output in outputs if _wants(output)]
        return roots, [None] * len(roots)
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and _wants(o)]
    return [output for output, _ in pairs], [gradient for _, gradient in pairs]
