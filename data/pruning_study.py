"""Five seeds of LeNet-300-100, pruned: `python data/pruning_study.py`.

Writes three tables into `data/` for page `pruning`. `pruning_criteria.csv`: what each criterion
leaves at each sparsity, at once and after fine-tuning; `pruning_small.csv`, pruned nets and small
dense ones at four rates, with the accuracy on held-out digits, by which a rate can be chosen;
`pruning_trunk.csv`, a residual net that loses channels, and small nets from scratch, with as many
epochs and with half of them, at three rates, one of which held-out digits choose. The test images
decide nothing.
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
    global_masks,
    gradient,
    layer_masks,
    magnitude,
    multiply_adds,
    random_scores,
    snip,
)
from mpcourse.training.in_memory import LOSS, RATE, TUNING_RATE, Data, train
from mpcourse.training.nets import lenet_300_100, linear_net

COMMAND = "python data/pruning_study.py"
SMALL = 44, 14  # a dense net that takes as many bytes as 90% zeros and the bits of their mask
BLIND = {"blocks blind": ("blocks.0.0", "blocks.1.0"), "head blind": ("head",)}
CHANCE = 0.1  # of a net with an empty layer: one answer for all images, as many of each digit

Masks = dict[str, torch.Tensor]


class Budget(NamedTuple):
    """How long and how far: epochs of the dense net, epochs after pruning, sparsities."""

    epochs: int = 15
    tuning: int = 5
    sparsities: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95, 0.98)
    short: tuple[int, int] = (5, 2)  # epochs of the nets that the page trains itself, and after
    rates: tuple[float, ...] = (0.02, RATE, 0.1, 0.2)
    residual: tuple[tuple[int, int], ...] = ((6, 2), (12, 4))  # epochs of a residual net, and after
    residual_rates: tuple[float, ...] = (0.1, 0.2, 0.4)


DRY = Budget(1, 1, (0.9,), short=(1, 0), rates=(RATE,))
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
    """Train one net, prune copies of it by every criterion to every sparsity, fine-tune each."""
    torch.manual_seed(seed)
    dense = lenet_300_100().to(data.place)
    movement = Movement(dense)
    train(dense, data, budget.epochs, RATE, [movement])
    before = data.accuracy(dense)
    rows = []
    for criterion, scores in criteria_of(dense, movement, data).items():
        for how, masks_from in (("global", global_masks), ("layer", layer_masks)):
            for sparsity in budget.sparsities:
                row = {"criterion": criterion, "masks": how, "sparsity": sparsity, "seed": seed}
                found = _prune_and_tune(dense, masks_from(scores, sparsity), data, budget.tuning)
                rows.append({**row, "dense": before, **found})
    return rows


def _prune_and_tune(dense: nn.Module, masks: Masks, data: Data, tuning: int) -> Row:
    if not all(mask.any() for mask in masks.values()):
        return {"pruned": CHANCE, "tuned": CHANCE, "empty_layer": 1}
    model = copy.deepcopy(dense)
    apply_masks(model, masks)
    pruned = data.accuracy(model)
    train(model, data, tuning, TUNING_RATE)
    return {"pruned": pruned, "tuned": data.accuracy(model), "empty_layer": 0}


def compare_small(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Nets with 90% zeros, and small dense ones trained as long or twice as long, at each rate."""
    digits, (before, after), rows = Digits(data.place, 64), budget.short, []
    for rate in budget.rates:
        for way, times in {"pruned": 1, "small": 1, "twice": 2}.items():
            torch.manual_seed(seed)
            model = (lenet_300_100() if way == "pruned" else linear_net(*SMALL)).to(data.place)
            train(model, digits, times * before, rate)
            if way == "pruned":
                apply_masks(model, global_masks(magnitude(model), 0.9))
            train(model, digits, times * after, rate / 5)
            judged = {"held_out": digits.accuracy(model), "accuracy": digits.test_accuracy(model)}
            rows.append({"way": way, "rate": rate, "seed": seed, **judged})
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
    for conv, norm, _, reader, _ in slim.blocks:
        kept = _larger_half(conv)
        conv.weight = nn.Parameter(conv.weight.detach()[kept])
        norm.weight, norm.bias = (nn.Parameter(p.detach()[kept]) for p in norm.parameters())
        norm.running_mean, norm.running_var = norm.running_mean[kept], norm.running_var[kept]
        reader.weight = nn.Parameter(reader.weight.detach()[:, kept])
    return slim


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recordings."""
    studies = {
        "pruning_criteria.csv": compare_criteria,
        "pruning_small.csv": compare_small,
        "pruning_trunk.csv": compare_trunk,
    }
    return run_studies(
        studies, (Budget(), DRY), command=COMMAND, about=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
