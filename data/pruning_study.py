"""Five seeds of nets that are pruned: `python data/pruning_study.py`.

Writes four tables into `data/` for page `pruning`. `pruning_criteria.csv`: nets that keep 2% of
their weights by each criterion, fine-tuned at seven rates; `pruning_small.csv`: pruned nets, the
same unpruned, and small dense ones at four rates; `pruning_channels.csv`: a convolutional net that
loses half of its channels, at one rate; `pruning_trunk.csv`: a residual net that loses channels,
and small nets from scratch, with as many epochs and with half of them, at four rates. Where there
are several rates, the accuracy on held-out digits can choose one; the test images decide nothing.
"""

import copy
import itertools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from studies import Row, run_studies
from torch import nn
from torch.optim.swa_utils import update_bn

from mpcourse.capstone.trials import Digits
from mpcourse.exercises.pruning import Residual, my_trunk
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
from mpcourse.training.in_memory import LOSS, RATE, TUNING_RATE, Data, train
from mpcourse.training.nets import conv_net, lenet_300_100, linear_net

COMMAND = "python data/pruning_study.py"
SMALL = 44, 14  # a dense net that takes as many bytes as 90% zeros and the bits of their mask
# times as many epochs; in eight times as many the small net has done more work than the large one
WAYS = {"pruned": 1, "small": 1, "twice": 2, "more work": 8, "dense": 1}
SPARSITY = 0.98  # at which the criteria are compared
BLIND = {"blocks blind": ("blocks.0.0", "blocks.1.0"), "head blind": ("head",)}


class Budget(NamedTuple):
    """How long, and at which rates: epochs of the dense net, and epochs after pruning."""

    epochs: int = 15
    tuning: int = 5
    tuning_rates: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    short: tuple[int, int] = (5, 2)  # epochs of the nets that the page trains itself, and after
    rates: tuple[float, ...] = (0.02, RATE, 0.1, 0.2)
    convolutional: tuple[int, int] = (8, 4)  # epochs of the convolutional net, and after
    residual: tuple[tuple[int, int], ...] = ((6, 2), (12, 4))  # epochs of a residual net, and after
    residual_rates: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)


DRY = Budget(1, 1, (TUNING_RATE,), short=(1, 0), rates=(RATE,))
DRY = DRY._replace(convolutional=(1, 0), residual=((1, 0),), residual_rates=(RATE,))


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
        rows.append({"criterion": criterion, "rate": rate, "seed": seed, **_judged(model, digits)})
    return rows


def _judged(model: nn.Module, digits: Digits) -> Row:
    return {"held_out": digits.accuracy(model), "accuracy": digits.test_accuracy(model)}


def compare_small(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Nets with 90% zeros, the same unpruned, and small ones trained as long or longer."""
    digits, (before, after), rows = Digits(data.place, 64), budget.short, []
    for rate in budget.rates:
        for way, times in WAYS.items():
            torch.manual_seed(seed)
            large = way in ("pruned", "dense")
            model = (lenet_300_100() if large else linear_net(*SMALL)).to(data.place)
            train(model, digits, times * before, rate)
            if way == "pruned":
                apply_masks(model, global_masks(magnitude(model), 0.9))
            train(model, digits, times * after, rate / 5)
            rows.append({"way": way, "rate": rate, "seed": seed, **_judged(model, digits)})
    return rows


def compare_channels(data: Data, seed: int, budget: Budget) -> list[Row]:
    """A convolutional net, whole and without half of its channels: the smallest, or drawn ones."""
    before, after = budget.convolutional
    torch.manual_seed(seed)
    whole = conv_net().to(data.place)
    train(whole, data, before, RATE)
    norms = channel_norms(whole, layers=("conv1", "conv2", "fc1"))
    scores = {"norm": norms, "random": {n: torch.rand_like(norm) for n, norm in norms.items()}}
    slim = {way: remove_channels(whole, layer_masks(each, 0.5)) for way, each in scores.items()}
    rows = []
    for way, net in {"whole": whole, **slim}.items():
        row = {"way": way, "seed": seed, "pruned": data.accuracy(net)}
        train(net, data, after, TUNING_RATE)
        rows.append({**row, "tuned": data.accuracy(net)})
    return rows


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
        nets |= {way: _blind(whole, readers, kept) for way, readers in BLIND.items()}
        for way, net in nets.items():
            row = {"way": way, "epochs": before + after, "rate": rate, "seed": seed}
            row["cut"] = digits.test_accuracy(net)
            update_bn(digits.shuffled, net)
            row["fresh"] = digits.test_accuracy(net)
            train(net, digits, after, rate / 5)
            row |= {"held_out": digits.accuracy(net), "tuned": digits.test_accuracy(net)}
            row["multiply_adds"] = own = multiply_adds(net, data.test[0][0][:1])[0]
            first = own if "scratch" in way else work
            rows.append({**row, "training": before * first + after * own})  # of a digit
    return rows


def _blind(net: nn.Module, readers: Sequence[str], kept: torch.Tensor) -> nn.Module:
    """Nothing leaves, but the readers do not see other channels than those that are kept."""
    blind = copy.deepcopy(net)
    masks = {name: torch.zeros_like(blind.get_submodule(name).weight) for name in readers}
    for mask in masks.values():
        mask[:, kept] = 1
    apply_masks(blind, masks)
    return blind


def _larger_half(*layers: nn.Module) -> torch.Tensor:
    """The channels with the largest norms over all these layers."""
    squares = sum(layer.weight.detach().square().flatten(1).sum(1) for layer in layers)
    return squares.topk(len(squares) // 2).indices.sort().values


def _cut_inside(net: nn.Module) -> nn.Module:
    """Half of the channels inside each block leave."""
    slim = copy.deepcopy(net)
    for index, block in enumerate(slim.blocks):
        masks = layer_masks(channel_norms(block, ["0"]), 0.5)
        slim.blocks[index] = remove_channels(block, masks)
    return slim


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recordings."""
    studies = {
        "pruning_criteria.csv": compare_criteria,
        "pruning_small.csv": compare_small,
        "pruning_channels.csv": compare_channels,
        "pruning_trunk.csv": compare_trunk,
    }
    return run_studies(
        studies, (Budget(), DRY), command=COMMAND, about=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
