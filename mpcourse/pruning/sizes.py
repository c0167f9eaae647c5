"""What a pruned model consists of: non-zeros, parameters, bytes, multiply-adds.

Time is measured apart, in `latency`: none of these numbers says how long a forward takes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mpcourse.pruning.formats import bytes_in_formats
from mpcourse.pruning.layers import count_nonzeros
from mpcourse.training.loop import evaluation_mode


@dataclass(frozen=True)
class Report:
    """Sizes of one model."""

    parameters: int  # all, biases and norms included
    weights: int  # of Linear and convolution layers
    nonzeros: int  # of the weights
    bytes: dict[str, int]  # by format, as `bytes_in_formats` gives them
    multiply_adds: int  # of one forward, as torch's dense kernels do them
    nonzero_multiply_adds: int  # those whose weight is not zero

    @property
    def sparsity(self) -> float:
        """The share of the weights that is zero."""
        return 1 - self.nonzeros / self.weights

    def __str__(self) -> str:
        return report_table({"": self})


def report(model: nn.Module, sample: Tensor) -> Report:
    """Count what a model consists of; multiply-adds are those of a forward of the sample."""
    counts = count_nonzeros(model)
    dense, useful = multiply_adds(model, sample)
    return Report(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weights=sum(count for _, count in counts.values()),
        nonzeros=sum(nonzeros for nonzeros, _ in counts.values()),
        bytes=bytes_in_formats(model),
        multiply_adds=dense,
        nonzero_multiply_adds=useful,
    )


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
        _encoders_in_steps(),
    ):
        model(sample)
    found, root = counter.get_flop_counts(), type(model).__name__
    total = useful = counter.get_total_flops()
    for name, (nonzeros, count) in count_nonzeros(model).items():
        layer = sum(found.get(f"{root}.{name}" if name else root, {}).values())
        useful -= layer * (count - nonzeros) / count
    return total // 2, round(useful / 2)


@contextmanager
def _encoders_in_steps() -> Iterator[None]:
    """Without the one operation for a whole encoder layer, which torch's counter does not know."""
    was_on = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_on)


def report_table(reports: Mapping[str, Report]) -> str:
    """Several reports as text: title of a column -> report."""
    columns = [
        {
            "parameters": each.parameters,
            "weights": each.weights,
            "non-zero weights": each.nonzeros,
            "multiply-adds": each.multiply_adds,
            "with non-zero weights": each.nonzero_multiply_adds,
            **{f"bytes, {name}": size for name, size in each.bytes.items()},
        }
        for each in reports.values()
    ]
    lines = [" " * 22 + "".join(f"{title:>14}" for title in reports)] if any(reports) else []
    for name in columns[0]:
        lines.append(f"{name:<22}" + "".join(f"{column[name]:>14,}" for column in columns))
    return "\n".join(lines)
