"""One stage of a pipeline and what it keeps between its forwards and its backwards.

Page `pipeline`.

The graph is cut at the stage's edges: its input is a leaf, its output is handed on detached, and
the gradient comes back by itself. So each stage's backward runs where and when the schedule says.
Source: torch/distributed/pipelining/stage.py and _backward.py.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from mpcourse.devices.workers import add_note
from mpcourse.pipeline.replay import NotesDraws, Replay
from mpcourse.pipeline.split_backward import SplitBackward

Loss = Callable[[Any], Tensor]
Gradients = list[Tensor | None]  # one per leaf of an input or output; None: no gradient
Roots = tuple[list[Tensor], Gradients]  # where a backward begins; None: a loss, whose gradient is 1

BEGINS_IN_PLACE = (
    "the stage begins with an operation in place, which would overwrite the leaf that its gradient "
    "arrives at: cut one layer earlier, or use inplace=False"
)


@dataclass(slots=True)
class Kept:
    """What a stage keeps of a micro-batch until its backward is done.

    Attributes:
        inputs: The leaves of the input; gradients arrive at the tensors that require them.
        outputs: The leaves of the output, with their graph; none if there is a `replay`.
        replay: Of a stage that recomputes: makes the outputs once more.
        split: Between I and W: the backward under way; None when W has all the work.
        roots: Between I and W, without `split`: where W begins.
    """

    inputs: list[Any]
    outputs: list[Any]
    replay: Replay | None = None
    split: SplitBackward | None = None
    roots: "Roots" = ([], [])


class Stage:
    """A module, and the micro-batches that are under way in it.

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
        self.kept: dict[int, Kept] = {}

    def clear(self) -> None:
        """Forget all micro-batches, as after a step that failed."""
        self.kept.clear()

    def forward(self, index: int, value: Any, loss: Loss | None = None) -> Any:
        """F: run the module on micro-batch `index`, keep what its backward needs.

        Args:
            index: Of the micro-batch.
            value: Its input, a tensor or a nest of tensors, on this device.
            loss: For the last stage: what becomes of the output.

        Returns:
            The output (or the loss), cut off from the graph.
        """
        inputs, structure = _flatten(value)
        if not self.is_first and not all(_is_leaf(leaf) for leaf in inputs):
            inputs = [leaf if _is_leaf(leaf) else _cut_off(leaf) for leaf in inputs]
            value = inputs[0] if structure is None else tree_unflatten(inputs, structure)

        def run() -> Any:
            output = self._call(value)
            return output if loss is None else loss(output)

        replay = Replay(self.module, inputs, run) if self.recompute else None
        if replay is not None:
            output = replay.first()
        else:
            with NotesDraws([]) if self.beside_others else nullcontext():
                output = run()
        outputs, structure = _flatten(output)
        self.kept[index] = Kept(inputs, outputs if replay is None else [], replay)
        if structure is None:
            return _cut_off(output)
        return tree_unflatten([_cut_off(leaf) for leaf in outputs], structure)

    def _call(self, value: Any) -> Any:
        try:
            return self.module(value)
        except RuntimeError as error:
            if "leaf Variable that requires grad is being used in an in-place" in str(error):
                add_note(error, BEGINS_IN_PLACE)
            raise

    def run_backward(self, kind: str, index: int, gradients: Gradients | None) -> Gradients | None:
        """B, I or W of micro-batch `index`."""
        run = {"B": self.backward, "I": self.backward_input, "W": self.backward_weight}
        return run[kind](index, gradients)

    def backward(self, index: int, gradients: Gradients | None) -> Gradients:
        """B: add to the weights' gradients, return the input's.

        Args:
            index: Of the micro-batch.
            gradients: Of each leaf of the output; None for the last stage: its output is the loss.
        """
        kept = self.kept.pop(index)
        roots, gradients = _roots(_outputs(kept), gradients)
        if roots:
            with _watched(kept):
                torch.autograd.backward(roots, gradients)
        return self._input_gradients(kept)

    def backward_input(self, index: int, gradients: Gradients | None) -> Gradients:
        """I: return the input's gradient and leave the weights' for `backward_weight`.

        A stage that makes no input gradient leaves all the work to W: the first one, and one whose
        input requires none.
        """
        kept = self.kept[index]
        roots, gradients = _roots(_outputs(kept), gradients)
        kept.outputs = []
        wanted = [] if self.is_first else [leaf for leaf in kept.inputs if _wants(leaf)]
        if roots and wanted:
            kept.split = SplitBackward(roots, gradients, wanted)
            with _watched(kept):
                kept.split.run_inputs()
        else:
            kept.roots = (roots, gradients)
        return self._input_gradients(kept)

    def backward_weight(self, index: int, _: None = None) -> None:
        """W: add to the weights' gradients what `backward_input` left; it takes in nothing."""
        kept = self.kept.pop(index)
        with _watched(kept):
            if kept.split is not None:
                kept.split.run_weights()
            elif kept.roots[0]:
                torch.autograd.backward(*kept.roots)

    def _input_gradients(self, kept: Kept) -> Gradients:
        if self.is_first:
            return []
        return [leaf.grad if isinstance(leaf, Tensor) else None for leaf in kept.inputs]


def _outputs(kept: Kept) -> list[Any]:
    return kept.outputs if kept.replay is None else _flatten(kept.replay.again())[0]


def _watched(kept: Kept) -> AbstractContextManager:
    return nullcontext() if kept.replay is None else kept.replay.watched()


def _wants(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _flatten(value: Any) -> tuple[list[Any], TreeSpec | None]:
    """The leaves of a nest and its structure; a tensor alone, the usual case, needs no tree."""
    return ([value], None) if isinstance(value, Tensor) else tree_flatten(value)


def _cut_off(value: Any) -> Any:
    """The same numbers without their graph; a gradient is wanted of them if it was before."""
    if not isinstance(value, Tensor):
        return value
    cut = value.detach()
    return cut.requires_grad_() if value.requires_grad else cut


def _is_leaf(value: Any) -> bool:
    """What was cut off is a leaf, unless a copy between devices has come between."""
    return not isinstance(value, Tensor) or value.is_leaf


def _roots(outputs: list[Any], gradients: Gradients | None) -> Roots:
    """Where a backward begins: the outputs that have a gradient, with theirs."""
    if gradients is None:
        roots = [output for output in outputs if _wants(output)]
        return roots, [None] * len(roots)
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and _wants(o)]
    return [output for output, _ in pairs], [gradient for _, gradient in pairs]
