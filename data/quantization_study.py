"""Five seeds of LeNet-300-100 in few bits: `python data/quantization_study.py`.

Writes `data/quantization.csv` (page `quantization`): accuracy and bytes of the dense net
and of the pruned one, in float32, in int8 in several ways, and with fewer bits after training and
in training. The test images decide nothing; ranges come from training images.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from studies import Row, run_studies
from torch import nn

from mpcourse.pruning import apply_masks, global_masks, magnitude
from mpcourse.pruning.formats import saved
from mpcourse.pruning.masked import permanent_copy
from mpcourse.quantization import calibrate, prepare_qat, to_int8
from mpcourse.training.in_memory import RATE, TUNING_RATE, Data, train
from mpcourse.training.nets import lenet_300_100

COMMAND = "python data/quantization_study.py"

Variant = tuple[str, int, Callable[[], nn.Module]]  # way, bits of the weights, what makes the net


class Budget(NamedTuple):
    """How long and how far: epochs of the dense net, epochs of tuning, the share pruned, bits."""

    epochs: int = 15
    tuning: int = 5
    sparsity: float = 0.9
    few_bits: tuple[int, ...] = (4, 3, 2)


DRY = Budget(epochs=1, tuning=1, few_bits=(2,))


def quantize_one_seed(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Train a net, prune a copy of it, quantize both in all ways."""
    torch.manual_seed(seed)
    dense = lenet_300_100().to(data.place)
    train(dense, data, budget.epochs, RATE)
    pruned = copy.deepcopy(dense)
    apply_masks(pruned, global_masks(magnitude(pruned), budget.sparsity))
    train(pruned, data, budget.tuning, TUNING_RATE)
    rows = []
    for net, model in (("dense", dense), ("pruned", pruned)):
        for way, bits, make in variants(model, data, budget):
            made = make()
            row = {"net": net, "way": way, "bits": bits, "seed": seed}
            size = len(saved(made.state_dict()))
            rows.append({**row, "accuracy": data.accuracy(made), "bytes": size})
    return rows


def variants(model: nn.Module, data: Data, budget: Budget) -> Iterator[Variant]:
    """All ways to quantize a trained net, each as a function that does it."""
    ranges = calibrate(model, [data.all_train])
    yield "float32", 32, lambda: permanent_copy(model)
    yield "static", 8, lambda: to_int8(model, ranges)
    yield "static, per tensor", 8, lambda: to_int8(model, ranges, per_channel=False)
    yield "dynamic", 8, lambda: to_int8(model)
    for bits in (8, *budget.few_bits):
        if bits < 8:
            yield "static", bits, lambda bits=bits: to_int8(model, ranges, bits=bits)
        yield "trained", bits, lambda bits=bits: to_int8(_tuned(model, data, budget, bits))
    # without rounding, as long: what the extra epochs alone are worth, in floats and rounded
    tuned = _tuned(model, data, budget, None)
    own = calibrate(tuned, [data.all_train])
    yield "float32, tuned", 32, lambda: tuned
    for bits in budget.few_bits:
        yield "tuned, static", bits, lambda bits=bits: to_int8(tuned, own, bits=bits)


def _tuned(model: nn.Module, data: Data, budget: Budget, bits: int | None) -> nn.Module:
    """A copy after some more epochs, rounding in the forward unless bits is `None`."""
    ready = copy.deepcopy(model) if bits is None else prepare_qat(model, bits=bits)
    train(ready, data, budget.tuning, TUNING_RATE)
    return permanent_copy(ready) if bits is None else ready


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recording."""
    studies = {"quantization.csv": quantize_one_seed}
    return run_studies(
        studies, (Budget(), DRY), command=COMMAND, about=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
