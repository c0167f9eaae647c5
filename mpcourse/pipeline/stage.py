"""One stage of a pipeline and what it keeps between its forwards and its backwards.

Page `pipeline`.

The graph is cut at the stage's edges: its input is a leaf, its output is handed on detached, and
the gradient comes back by itself. So each stage's backward runs where and when the schedule says.
Source: torch/distributed/pipelining/stage.py and _backward.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

Loss = Callable[[Any], Tensor]


@dataclass
class Kept:
    """What a stage keeps of a micro-batch until its backward is done.

    Attributes:
        inputs: Leaves of the graph, one per tensor of the input; the gradients arrive there.
        outputs: Tensors that require gradients, one per tensor of the output, else None.
        later: After I: what W needs.
    """

    inputs: list[Tensor]
    outputs: list[Tensor | None]
    later: list[Any] = field(default_factory=list)


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
        self.kept[index] = Kept(_tensors(leaves), [_tracked(leaf) for leaf in _tensors(outputs)])
        return tree_unflatten([_detached(leaf) for leaf in outputs], structure)

    def _run(self, value: Any) -> Any:
        try:
            return self.module(value)
        except RuntimeError as error:
            if "leaf Variable that requires grad is being used in an in-place" in str(error):
                error.add_note(
                    "the stage begins with an operation in place, which would overwrite the leaf "
                    "that its gradient arrives at: cut one layer earlier, or use inplace=False"
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
        roots, gradients = _roots(kept.outputs, gradients)
        if roots:
            torch.autograd.backward(roots, gradients)
        return self._input_gradients(kept)

    def backward_input(
        self, index: int, gradients: list[Tensor | None] | None
    ) -> list[Tensor | None]:
        """I: return the input's gradient and leave the weights' for `backward_weight`.

        The work for the input is not done again there: torch keeps the gradients at the points
        where the two ways part.
        """
        from torch.distributed.pipelining._backward import stage_backward_input

        kept = self.kept[index]
        roots, gradients = _roots(kept.outputs, gradients)
        if self.is_first or not roots:  # no input gradient to make: all the work is W's
            kept.later = [roots, gradients]
            return [None] * len(kept.inputs)
        wanted = [leaf for leaf in kept.inputs if leaf.requires_grad]
        _, kept.later = stage_backward_input(roots, gradients, wanted, self._weights())
        kept.outputs = []  # frees the part of the graph that W does not need
        return self._input_gradients(kept)

    def backward_weight(self, index: int) -> None:
        """W: add to the weights' gradients what `backward_input` left."""
        from torch.distributed.pipelining._backward import stage_backward_weight

        kept = self.kept.pop(index)
        if kept.outputs:  # backward_input did nothing
            roots, gradients = kept.later
            if roots:
                torch.autograd.backward(roots, gradients)
        else:
            stage_backward_weight(self._weights(), kept.later)

    def _weights(self) -> Any:
        return (weight for weight in self.module.parameters() if weight.requires_grad)

    def _input_gradients(self, kept: Kept) -> list[Tensor | None]:
        return [None if self.is_first else leaf.grad for leaf in kept.inputs]


def _leaf(value: Any) -> Any:
    """The same numbers as a leaf of a new graph."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_(value.is_floating_point() or value.is_complex())


def _tensors(leaves: list[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _tracked(output: Tensor) -> Tensor | None:
    """The output as a root of the backward, if it has one."""
    if not output.requires_grad:
        return None
    # torch frees a root's graph in place after I, which it cannot do to a view
    return output.clone() if output._is_view() else output


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


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
