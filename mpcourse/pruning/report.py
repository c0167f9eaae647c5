"""What a pruned model consists of: non-zeros, parameters, bytes, multiply-adds.

Time is measured apart, in `latency`: none of these numbers says how long a forward takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mpcourse.pruning.formats import bytes_in_formats
from mpcourse.pruning.layers import count_nonzeros
from mpcourse.training.loop import evaluation_mode


@dataclass(frozen=True)
class Report:
    """Sizes of one model.

    Attributes:
        parameters: All of them, biases and norms included.
        weights: Those of Linear and convolution layers.
        nonzeros: The weights that are not zero.
        bytes: Format -> bytes on disk, as `bytes_in_formats` gives them.
        multiply_adds: Of one forward, as torch's dense kernels do them.
        nonzero_multiply_adds: Those of them whose weight is not zero: what could be saved.
    """

    parameters: int
    weights: int
    nonzeros: int
    bytes: dict[str, int]
    multiply_adds: int
    nonzero_multiply_adds: int

    @property
    def sparsity(self) -> float:
        """The share of the weights that is zero."""
        return 1 - self.nonzeros / self.weights

    def __str__(self) -> str:
        return report_table({"": self})


def report(model: nn.Module, sample: Tensor) -> Report:
    """Count what a model consists of; it stays as it is.

    Args:
        model: Any module with Linear or convolution layers, masked or not.
        sample: An input, on the model's device; multiply-adds are counted for all of its rows.
    """
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
    for each multiply-add. (Each weight of a layer is used equally often: in the second number a
    layer counts by its share of non-zeros.)

    Args:
        model: Any module with Linear or convolution layers.
        sample: An input, on the model's device.

    Returns:
        All multiply-adds, and those whose weight is not zero.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad(), evaluation_mode(model):
        model(sample)
    found, root = counter.get_flop_counts(), type(model).__name__
    total = useful = counter.get_total_flops()
    for name, (nonzeros, count) in count_nonzeros(model).items():
        layer = sum(found.get(f"{root}.{name}" if name else root, {}).values())
        useful -= layer * (count - nonzeros) / count
    return total // 2, round(useful / 2)


def report_table(reports: Mapping[str, Report]) -> str:
    """Several reports as text, a column each.

    Args:
        reports: Title of the column -> report.
    """
    rows: dict[str, list[int]] = {
        "parameters": [each.parameters for each in reports.values()],
        "weights": [each.weights for each in reports.values()],
        "non-zero weights": [each.nonzeros for each in reports.values()],
        "multiply-adds": [each.multiply_adds for each in reports.values()],
        "with non-zero weights": [each.nonzero_multiply_adds for each in reports.values()],
    }
    for name in next(iter(reports.values())).bytes:
        rows[f"bytes, {name}"] = [each.bytes[name] for each in reports.values()]
    lines = ["".join([f"{'':<22}", *(f"{title:>14}" for title in reports)]).rstrip()]
    lines += [f"{name:<22}" + "".join(f"{n:>14,}" for n in row) for name, row in rows.items()]
    return "\n".join(line for line in lines if line)
