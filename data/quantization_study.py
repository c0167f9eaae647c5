"""Five seeds of LeNet-300-100 in few bits: `python data/quantization_study.py`.

Writes `data/quantization.csv` (pages `quantization`, `few_bits`): accuracy and bytes in float32, in
int8 in several ways, and with weights of 4, 3 and 2 bits, the inputs in floats: scales from the
largest weight, scales of least squared error, groups of weights, rounding column by column (GPTQ;
with both kinds of scales), and training with rounding. The nets `small` are much narrower: they
have fewer weights to spare. The test images decide nothing; inputs of layers come from training
images.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from studies import Row, run_studies
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from mpcourse.exercises.few_bits import my_best_scales, my_fake
from mpcourse.pruning.formats import saved
from mpcourse.quantization import calibrate, quantize_tensor, to_int8
from mpcourse.training.in_memory import RATE, TUNING_RATE, Data, train
from mpcourse.training.nets import lenet_300_100, linear_net

COMMAND = "python data/quantization_study.py"
GROUP = 64

Variant = tuple[str, int, Callable[[], nn.Module], int]  # way, bits, what makes the net, its bytes
Rounding = Callable[[Tensor, Tensor], Tensor]  # (weight, inputs of its layer) -> rounded weight


class Budget(NamedTuple):
    """How long: epochs of the float net, epochs of tuning; and the bits."""

    epochs: int = 15
    tuning: int = 5
    few_bits: tuple[int, ...] = (4, 3, 2)


DRY = Budget(epochs=1, tuning=1, few_bits=(2,))


def quantize_one_seed(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Train a wide net and a narrow one, quantize both in all ways."""
    rows = []
    for net, made in (("dense", lenet_300_100), ("small", lambda: linear_net(16, 16))):
        torch.manual_seed(seed)
        model = made().to(data.place)
        train(model, data, budget.epochs, RATE)
        for way, bits, make, size in variants(model, data, budget):
            row = {"net": net, "way": way, "bits": bits, "seed": seed}
            rows.append({**row, "accuracy": data.accuracy(make()), "bytes": size})
    return rows


def variants(model: nn.Module, data: Data, budget: Budget) -> Iterator[Variant]:
    """All ways to quantize a trained net: a function that does it, and the bytes it leaves."""
    ranges = calibrate(model, [data.all_train])
    eight = {
        "static": to_int8(model, ranges),
        "static, per tensor": to_int8(model, ranges, per_channel=False),
        "dynamic": to_int8(model),
    }
    yield "float32", 32, lambda: model, len(saved(model.state_dict()))
    for way, found in eight.items():
        yield way, 8, lambda found=found: found, len(saved(found.state_dict()))
    inputs = data.all_train[0]
    tuned = _tuned(model, data, budget, None)  # what the extra epochs alone are worth
    for bits in budget.few_bits:
        largest = 2 ** (bits - 1) - 1
        best = _by_rows(largest, my_best_scales)
        ways: dict[str, tuple[nn.Module, Rounding]] = {
            "largest": (model, _by_rows(largest, _largest)),
            "best": (model, best),
            "groups": (model, _by_groups(largest)),
            "gptq": (model, _by_columns(largest, _largest)),
            "gptq, best": (model, _by_columns(largest, my_best_scales)),
            "tuned, best": (tuned, best),
            "trained": (_tuned(model, data, budget, largest), lambda weight, inputs: weight),
        }
        for way, (net, rounding) in ways.items():
            size = packed_bytes(net, bits, GROUP if way == "groups" else None)
            yield way, bits, lambda n=net, r=rounding: in_few_bits(n, inputs, r), size


def in_few_bits(model: nn.Module, inputs: Tensor, rounding: Rounding) -> nn.Module:
    """A copy with rounded weights, first layer first: a layer's inputs are the rounded net's."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(rounding(layer.weight, inputs))
            inputs = layer(inputs)
    return model


def packed_bytes(model: nn.Module, bits: int, group: int | None) -> int:
    """Weights of so many bits, one after the other; scales of 16 bits, biases of 32."""
    total = 0
    for layer in (each for each in model if isinstance(each, nn.Linear)):
        groups = 1 if group is None else -(-layer.in_features // group)
        total += -(-layer.weight.numel() * bits // 8)
        total += layer.out_features * (2 * groups + 4)
    return total


def _largest(weight: Tensor, largest: int) -> Tensor:
    return quantize_tensor(weight, axis=0, bits=(largest + 1).bit_length()).scale


def _rounded(weight: Tensor, scales: Tensor, largest: int) -> Tensor:
    return (weight / scales[:, None]).round().clamp(-largest, largest) * scales[:, None]


def _by_rows(largest: int, scales: Callable[[Tensor, int], Tensor]) -> Rounding:
    return lambda weight, inputs: _rounded(weight, scales(weight, largest), largest)


def _by_groups(largest: int) -> Rounding:
    def rounding(weight: Tensor, inputs: Tensor) -> Tensor:
        width = weight.shape[1]
        parts = F.pad(weight, (0, -width % GROUP)).reshape(-1, GROUP)
        parts = _rounded(parts, my_best_scales(parts, largest), largest)
        return parts.reshape(len(weight), -1)[:, :width]

    return rounding


def _by_columns(largest: int, choose: Callable[[Tensor, int], Tensor]) -> Rounding:
    """GPTQ: what a column loses by rounding is made up for by the columns that follow."""

    def rounding(weight: Tensor, inputs: Tensor) -> Tensor:
        weight, scales = weight.clone(), choose(weight, largest)
        squares = (inputs.t() @ inputs).double()
        squares.diagonal().add_(0.01 * squares.diagonal().mean())
        factor = torch.linalg.cholesky(torch.linalg.inv(squares), upper=True).float()
        for column in range(weight.shape[1]):
            exact = weight[:, column].clone()
            weight[:, column] = _rounded(exact[:, None], scales, largest)[:, 0]
            off = (exact - weight[:, column]) / factor[column, column]
            weight[:, column + 1 :] -= torch.outer(off, factor[column, column + 1 :])
        return weight

    return rounding


class FewBits(nn.Module):
    """Stands between a layer and its weight: rounds, with a straight-through gradient."""

    def __init__(self, scales: Tensor, largest: int) -> None:
        super().__init__()
        self.scales, self.largest = scales[:, None], largest

    def forward(self, weight: Tensor) -> Tensor:
        """Take a weight to what its integers mean."""
        return my_fake(weight, self.scales, self.largest)


def _tuned(model: nn.Module, data: Data, budget: Budget, largest: int | None) -> nn.Module:
    """A copy after some more epochs; with `largest`, rounding in the forward, scales as before."""
    ready = copy.deepcopy(model)
    layers = [layer for layer in ready if isinstance(layer, nn.Linear)]
    if largest is not None:
        for layer in layers:
            few = FewBits(my_best_scales(layer.weight.detach(), largest), largest)
            register_parametrization(layer, "weight", few)
    train(ready, data, budget.tuning, TUNING_RATE)
    if largest is not None:
        for layer in layers:
            remove_parametrizations(layer, "weight")  # what it has become stays
    return ready


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recording."""
    studies = {"quantization.csv": quantize_one_seed}
    return run_studies(
        studies, (Budget(), DRY), command=COMMAND, about=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
