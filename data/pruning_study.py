"""Five seeds of nets that are pruned: `python data/pruning_study.py`.

Writes four tables into `data/` for page `pruning`. `pruning_criteria.csv`: nets that keep 2% of
their weights by each criterion, fine-tuned at seven rates; `pruning_shares.csv`: nets whose layers
lose equal shares, what one threshold takes, or what a scan allows, at seven rates;
`pruning_small.csv`: pruned nets, the same unpruned, both also in few bits, and small dense ones at
four rates, with the bytes of a packed file and with the test digits that are right;
`pruning_trunk.csv`: a residual net that loses channels by norm or by chance, and small nets from
scratch, with as many epochs and with half of them, at five rates. The accuracy on held-out digits
can choose a rate; the test images decide nothing.
"""

import copy
import itertools
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from studies import Row, judged, run_studies
from torch import nn
from torch.optim.swa_utils import update_bn

from mpcourse.capstone.trials import Digits
from mpcourse.exercises.few_bits import my_best_scales, rounded_to
from mpcourse.exercises.pruning import Residual, my_scan, my_trunk
from mpcourse.pruning import (
    Movement,
    apply_masks,
    channel_norms,
    global_masks,
    gradient,
    layer_masks,
    magnitude,
    multiply_adds,
    random_scores,
    remove_channels,
    snip,
)
from mpcourse.pruning.masked import permanent_copy
from mpcourse.training.in_memory import LOSS, RATE, TUNING_RATE, Data, train
from mpcourse.training.nets import lenet_300_100, linear_net

COMMAND = "python data/pruning_study.py"
LARGE = 300, 100
SMALL = 44, 14  # a dense net that takes as many bytes as 90% zeros and the bits of their mask
NARROW = 82, 20  # in 4 bits and packed, no more bytes than 90% zeros in 4 bits and packed
NARROWER = 72, 20  # not packed, no more bytes than 90% zeros in 4 bits, their mask packed
WIDER = 92, 20  # within 1% of as many, where both train longer: more values are zeros in 4 bits
# hidden sizes, and times as many epochs as the 7 of the shortest: in eight times as many the small
# net has done more work than the large one, in four times as many the narrower one nearly as much
WAYS = {
    "pruned": (LARGE, 1),
    "small": (SMALL, 1),
    "small, 56 epochs": (SMALL, 8),
    "dense": (LARGE, 1),
    "narrow": (NARROW, 1),
    "narrower": (NARROWER, 1),
    "narrower, 28 epochs": (NARROWER, 4),
    "pruned, 28 epochs": (LARGE, 4),
    "small, 28 epochs": (SMALL, 4),
    "small, 224 epochs": (SMALL, 32),
    "wider, 112 epochs": (WIDER, 16),
    "dense, 28 epochs": (LARGE, 4),
}
# of the same weights, rounded
BITS = {way: (4,) for way in WAYS if not way.startswith(("small", "dense"))} | {"dense": (4, 2)}
SPARSITY = 0.98  # at which the criteria are compared
# of a layer that a scan looks at; fewer where little is lost
SHARES = (0, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)
BY_CHANCE = "inside by chance"  # the control


class Budget(NamedTuple):
    """How long, and at which rates: epochs of the dense net, and epochs after pruning."""

    epochs: int = 15
    tuning: int = 5
    tuning_rates: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    short: tuple[int, int] = (5, 2)  # epochs of the nets that the page trains itself, and after
    longest: int = 32  # times as many epochs
    rates: tuple[float, ...] = (0.02, RATE, 0.1, 0.2)
    residual: tuple[tuple[int, int], ...] = ((6, 2), (12, 4))  # epochs of a residual net, and after
    residual_rates: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8, 1.6)


DRY = Budget(1, 1, (TUNING_RATE,), short=(1, 0), longest=1, rates=(RATE,))
DRY = DRY._replace(residual=((1, 0),), residual_rates=(RATE,))


def criteria_of(model: nn.Module, movement: Movement, data: Data) -> dict[str, Any]:
    """The scores of a trained net by each criterion, gradients over all training images."""
    probe = copy.deepcopy(model)
    images, labels = data.all_train
    LOSS(probe(images), labels).backward()
    return {
        "random": random_scores(probe),
        "magnitude": magnitude(probe),
        "gradient": gradient(probe),
        "snip": snip(probe),
        "movement": movement.scores,
    }


def compare_criteria(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Train one net; copies keep 2% of the weights by each criterion, tuned at each rate."""
    digits, rows = Digits(data.place, 64), []
    torch.manual_seed(seed)
    dense = lenet_300_100().to(data.place)
    movement = Movement(dense)
    train(dense, digits, budget.epochs, RATE, [movement])
    scores = criteria_of(dense, movement, digits)
    for criterion, rate in itertools.product(scores, budget.tuning_rates):
        model = copy.deepcopy(dense)
        apply_masks(model, global_masks(scores[criterion], SPARSITY))
        train(model, digits, budget.tuning, rate)
        rows.append({"criterion": criterion, "rate": rate, "seed": seed, **judged(digits, model)})
    return rows


def compare_shares(data: Data, seed: int, budget: Budget) -> list[Row]:
    """One net; copies keep as many weights by three ways to share them out among the layers."""
    digits, (before, after), rows = Digits(data.place, 64), budget.short, []
    torch.manual_seed(seed)
    dense = lenet_300_100().to(data.place)
    train(dense, digits, before, RATE)
    scores = magnitude(dense)
    scanned = my_scan(dense, SHARES, digits.accuracy)
    found = {name.removesuffix(".weight"): each for name, each in scanned.items()}
    for sparsity in (0.9, SPARSITY):
        masks = {
            "equal": layer_masks(scores, sparsity),
            "threshold": global_masks(scores, sparsity),
            "scan": layer_masks(scores, shares_by_scan(found, scores, sparsity)),
        }
        for (way, each), rate in itertools.product(masks.items(), budget.tuning_rates):
            model = copy.deepcopy(dense)
            apply_masks(model, each)
            row = {"way": way, "sparsity": sparsity, "rate": rate, "seed": seed}
            row["left"] = sum(int(mask.sum()) for mask in each.values())
            row["cut"] = digits.test_accuracy(model)
            train(model, digits, after, rate)
            rows.append(row | judged(digits, model))
    return rows


def shares_by_scan(
    scanned: Mapping[str, Sequence[float]], scores: Mapping[str, torch.Tensor], sparsity: float
) -> dict[str, float]:
    """Of all combinations that prune enough, the one whose accuracies in the scan sum to most."""
    total = sum(score.numel() for score in scores.values())
    lines = [
        [
            (size - round(share * size), right, share)
            for share, right in zip(SHARES, each, strict=True)
        ]
        for size, each in ((scores[name].numel(), each) for name, each in scanned.items())
    ]
    most = total - round(sparsity * total)
    ways = [way for way in itertools.product(*lines) if sum(left for left, *_ in way) <= most]
    best = max(ways, key=lambda way: sum(right for _, right, _ in way))
    return {name: share for name, (*_, share) in zip(scanned, best, strict=True)}


def compare_small(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Nets with 90% zeros, the same unpruned, and small ones trained as long or longer."""
    digits, (before, after), rows = Digits(data.place, 64), budget.short, []
    for rate in budget.rates:
        for way, (hidden, times) in WAYS.items():
            torch.manual_seed(seed)
            model = linear_net(*hidden).to(data.place)
            first, then = (min(times, budget.longest) * epochs for epochs in (before, after))
            if way in ("pruned, 28 epochs", "dense, 28 epochs"):
                first = then = (first + then + 1) // 2  # 14 and 14
            train(model, digits, first, rate)
            if way.startswith("pruned"):
                apply_masks(model, global_masks(magnitude(model), 0.9))
            train(model, digits, then, rate / 5)
            nets = {
                f"{way}, {bits} bits": (rounded(model, bits), bits) for bits in BITS.get(way, ())
            }
            for name, (net, bits) in {way: (model, 32), **nets}.items():
                row = {"way": name, "rate": rate, "seed": seed, **judged(digits, net)}
                row["packed"] = packed_bytes(model, bits)
                rows.append(row | {"right": right_digits(data, net)})
    return rows


@torch.no_grad()
def right_digits(data: Data, model: nn.Module) -> str:
    """A bit for each test digit, 1 where the net is right, after an x in hexadecimal."""
    right = torch.cat([model(images).argmax(1) == labels for images, labels in data.test])
    return "x" + np.packbits(right.cpu().numpy()).tobytes().hex()


@torch.no_grad()
def packed_bytes(model: nn.Module, bits: int) -> int:
    """The bytes of a net in so many bits, packed by zlib: the shorter of two ways.

    Every value; or a mask, and the values that are not zero. A row has a scale and a bias besides.
    """
    layers = [each for each in permanent_copy(model).modules() if isinstance(each, nn.Linear)]
    rest = sum(4 * len(layer.bias) * (1 + (bits < 32)) for layer in layers)
    if bits == 32:
        values = torch.cat([layer.weight.flatten() for layer in layers]).cpu().numpy()
        kinds = values.view(np.uint8).reshape(-1, 4)
    else:
        whole = [whole_numbers(layer.weight, bits)[0].flatten() for layer in layers]
        values = torch.cat(whole).cpu().numpy()
        kinds = (values + 2 ** (bits - 1)).astype(np.uint8)[:, None] << (8 - bits)
    stream = np.unpackbits(kinds, axis=1)[:, :bits]
    every = packed(stream)
    return rest + min(every, packed(values != 0) + packed(stream[values != 0]))


def packed(bits: np.ndarray) -> int:
    """How many bytes zlib makes of them."""
    return len(zlib.compress(np.packbits(bits).tobytes(), 9))


def whole_numbers(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight as whole numbers of so many bits, and the scale of each row."""
    largest = 2 ** (bits - 1) - 1
    scales = my_best_scales(weight, largest)
    return (rounded_to(weight, scales, largest) / scales[:, None]).round(), scales


@torch.no_grad()
def rounded(model: nn.Module, bits: int) -> nn.Module:
    """A copy whose weights are whole multiples of a scale, one a row: that of least squared error.

    The multiples have `bits` bits, one of them for the sign. Zeros stay zeros.
    """
    model, largest = permanent_copy(model), 2 ** (bits - 1) - 1
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            scales = my_best_scales(layer.weight, largest)
            layer.weight.copy_(rounded_to(layer.weight, scales, largest))
    return model


def compare_trunk(data: Data, seed: int, budget: Budget) -> list[Row]:
    """A residual net without half of the channels in its blocks or in its trunk, and small nets.

    Each way has as many epochs in all, at each rate. `cut` is the accuracy at once, `fresh` the one
    after the running statistics of the norms have been taken anew.
    """
    digits, rows = Digits(data.place, 64), []
    for rate, (before, after) in itertools.product(budget.residual_rates, budget.residual):
        torch.manual_seed(seed)
        new = [Residual(*sizes).to(data.place) for sizes in ((16, 16), (16, 8), (8, 16))]
        for net in new:
            train(net, digits, before, rate)
        whole, work = new[0], multiply_adds(new[0], data.test[0][0][:1])[0]
        kept = _larger_half(whole.stem[0], *(block[3] for block in whole.blocks))
        nets = {"inside": _cut_inside(whole), "trunk": my_trunk(whole, kept)}
        nets |= dict(zip(("whole", "inside scratch", "trunk scratch"), new, strict=True))
        if (before, after) == budget.residual[-1]:
            draw = torch.Generator().manual_seed(seed)
            nets[BY_CHANCE] = _cut_inside(whole, draw)
        for way, net in nets.items():
            row = {"way": way, "epochs": before + after, "rate": rate, "seed": seed}
            row["cut"] = digits.test_accuracy(net)
            if way == BY_CHANCE:
                torch.manual_seed(seed)  # this row does not depend on the ways before it
            update_bn(digits.shuffled, net)
            row["fresh"] = digits.test_accuracy(net)
            train(net, digits, after, rate / 5)
            row |= {"held_out": digits.accuracy(net), "tuned": digits.test_accuracy(net)}
            row["multiply_adds"] = own = multiply_adds(net, data.test[0][0][:1])[0]
            first = own if "scratch" in way else work
            rows.append({**row, "training": before * first + after * own})  # of a digit
    return rows


def _larger_half(*layers: nn.Module) -> torch.Tensor:
    """The channels with the largest norms over all these layers."""
    squares = sum(layer.weight.detach().square().flatten(1).sum(1) for layer in layers)
    return squares.topk(len(squares) // 2).indices.sort().values


def _cut_inside(net: nn.Module, draw: torch.Generator | None = None) -> nn.Module:
    """Half of the channels inside each block leave, by the norms of their rows or by chance."""
    slim = copy.deepcopy(net)
    for index, block in enumerate(slim.blocks):
        scores = channel_norms(block, ["0"])
        if draw:
            chance = torch.rand(len(scores["0"]), generator=draw)
            scores = {"0": chance.to(scores["0"].device)}
        slim.blocks[index] = remove_channels(block, layer_masks(scores, 0.5))
    return slim


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recordings."""
    studies = {
        "pruning_criteria.csv": compare_criteria,
        "pruning_shares.csv": compare_shares,
        "pruning_small.csv": compare_small,
        "pruning_trunk.csv": compare_trunk,
    }
    return run_studies(
        studies, (Budget(), DRY), command=COMMAND, about=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
