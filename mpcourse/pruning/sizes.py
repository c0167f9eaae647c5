"""The multiply-adds of a forward: all of them, and those with weights that are not zero.

Time is measured apart, in `latency`: these numbers do not say how long a forward takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mpcourse.pruning.layers import count_nonzeros
from mpcourse.training.loop import evaluation_mode


def multiply_adds(model: nn.Module, sample: Tensor) -> tuple[int, int]:
    """The multiply-adds of one forward, in evaluation mode.

    torch's counter knows shapes only, so zeros count as any weight does; it counts two operations
    for each multiply-add. Each weight of a layer is used equally often, so the non-zero ones are
    the layer's share of non-zero weights.

    Returns:
        All multiply-adds, and those whose weight is not zero.

    Raises:
        ValueError: The model has recurrent layers, which torch's counter takes for no work.
    """
    if recurrent := [name for name, m in model.named_modules() if isinstance(m, nn.RNNBase)]:
        raise ValueError(f"multiply-adds of recurrent layers are not counted: {recurrent}")
    with (
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
        evaluation_mode(model),
        _attention_in_steps(),
    ):
        model(sample)
    found, root = counter.get_flop_counts(), type(model).__name__
    total = useful = counter.get_total_flops()
    for name, (nonzeros, count) in count_nonzeros(model).items():
        layer = sum(found.get(f"{root}.{name}" if name else root, {}).values())
        useful -= layer * (count - nonzeros) / count
    return total // 2, round(useful / 2)


@contextmanager
def _attention_in_steps() -> Iterator[None]:
    """Without one operation for an encoder layer or its attention: not each torch counts them."""
    was_on = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_on)
