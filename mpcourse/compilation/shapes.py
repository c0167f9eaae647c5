"""How often torch.compile compiles when the shape of the input changes."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from mpcourse.pruning.masked import permanent_copy


class CountingBackend:
    """A backend for torch.compile that counts the graphs it is given, and runs them as they are.

    It needs no compiler: what counts is how often torch would have called one.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: GraphModule, inputs: list[Tensor]) -> Callable:
        """Take a graph and example inputs; return what runs it."""
        self.count += 1
        return graph.forward


def count_compiles(model: nn.Module, samples: Iterable[Tensor]) -> list[int]:
    """Call a compiled model with one sample after the other and count.

    torch's cache of compiled code is reset before and afterwards.

    Args:
        model: Any module that takes one tensor; copied, without masks, in evaluation mode.
        samples: Inputs of several shapes, on the model's device.

    Returns:
        For each sample, how many graphs had been compiled after it.
    """
    backend, counts = CountingBackend(), []
    torch.compiler.reset()
    try:
        compiled = torch.compile(permanent_copy(model).eval(), backend=backend)
        with torch.no_grad():
            for sample in samples:
                compiled(sample)
                counts.append(backend.count)
    finally:
        torch.compiler.reset()
    return counts
