"""One stage of a pipeline and what it keeps between its forwards and its backwards.

Page `pipeline`.

The graph is cut at the stage's edges: its input is a leaf, its output is handed on detached, and
the gradient comes back by itself. So each stage's backward runs where and when the schedule says.
Source: torch/distributed/pipelining/stage.py and _backward.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from mpcourse.devices.results import add_note
from mpcourse.pipeline.split_backward import SplitBackward

Loss = Callable[[Any], Tensor]


@dataclass
class Kept:
    """What a stage keeps of a micro-batch until its backward is done.

    Attributes:
        inputs: One per tensor of the input; gradients arrive at those that require them.
        outputs: Tensors that require gradients, one per tensor of the output, else None.
        split: Between I and W: the backward under way; None when W has all the work.
    """

    inputs: list[Tensor]
    outputs: list[Tensor | None]
    split: SplitBackward | None = None
    roots: tuple[list[Tensor], list[Tensor]] = ([], [])


class Stage:
    """A module, and the micro-batches that are under way in it.

    Args:
        module: The stage's layers.
        is_first: Its input is data: nobody waits for its gradient.
    """

    def __init__(self, module: nn.Module, *, is_first: bool) -> None:
        self.module = module
        self.is_first = is_first
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
        leaves, structure = tree_flatten(value)
        if not self.is_first:
            leaves = [_leaf(leaf) for leaf in leaves]
        output = self._run(tree_unflatten(leaves, structure))
        if loss is not None:
            output = loss(output)
        outputs, structure = tree_flatten(output)
        roots = [leaf if leaf.requires_grad else None for leaf in _tensors(outputs)]
        self.kept[index] = Kept(_tensors(leaves), roots)
        return tree_unflatten([_leaf(leaf) for leaf in outputs], structure)

    def _run(self, value: Any) -> Any:
        try:
            return self.module(value)
        except RuntimeError as error:
            if "leaf Variable that requires grad is being used in an in-place" in str(error):
                add_note(
                    error,
                    "the stage begins with an operation in place, which would overwrite the leaf "
                    "that its gradient arrives at: cut one layer earlier, or use inplace=False",
                )
            raise

    def backward(self, index: int, gradients: list[Tensor | None] | None) -> list[Tensor | None]:
        """B: add to the weights' gradients, return the input's.

        Args:
            index: Of the micro-batch.
            gradients: Of each tensor of the output; None for the last stage, whose output is the
                loss.
        """
        kept = self.kept.pop(index)
        _run_backward(*_roots(kept.outputs, gradients))
        return self._input_gradients(kept)

    def backward_input(
        self, index: int, gradients: list[Tensor | None] | None
    ) -> list[Tensor | None]:
        """I: return the input's gradient and leave the weights' for `backward_weight`.

        A stage that makes no input gradient leaves all the work to W: the first one, and one whose
        input requires none.
        """
        kept = self.kept[index]
        roots, gradients = _roots(kept.outputs, gradients)
        kept.outputs = []
        wanted = [] if self.is_first else [leaf for leaf in kept.inputs if leaf.requires_grad]
        if roots and wanted:
            kept.split = SplitBackward(roots, gradients, wanted)
            kept.split.run_inputs()
        else:
            kept.roots = (roots, gradients)
        return self._input_gradients(kept)

    def backward_weight(self, index: int) -> None:
        """W: add to the weights' gradients what `backward_input` left."""
        kept = self.kept.pop(index)
        if kept.split is not None:
            kept.split.run_weights()
        else:
            _run_backward(*kept.roots)

    def _input_gradients(self, kept: Kept) -> list[Tensor | None]:
        return [None if self.is_first else leaf.grad for leaf in kept.inputs]


def _run_backward(roots: list[Tensor], gradients: list[Tensor]) -> None:
    if roots:
        torch.autograd.backward(roots, gradients)


def _leaf(value: Any) -> Any:
    """The same numbers without their graph; a gradient is wanted of them if it was before."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _tensors(leaves: list[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _roots(
    outputs: list[Tensor | None], gradients: list[Tensor | None] | None
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Where a backward begins: the outputs that have a gradient, with theirs."""
    if gradients is None:
        gradients = [torch.ones_like(output) for output in outputs if output is not None]
        outputs = [output for output in outputs if output is not None]
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if output is not None and gradient is not None
    ]
    return [output for output, _ in pairs], [gradient for _, gradient in pairs]
