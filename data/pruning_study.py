"""Five seeds of LeNet-300-100, pruned: `python data/pruning_study.py`.

Writes two tables into `data/`: `pruning_criteria.csv` (page `pruning`: what each criterion leaves
at each sparsity, at once and after fine-tuning) and `sparse_training.csv` (page `sparse_training`:
ways to the same sparsity, each with the same number of epochs). The test images decide nothing.
"""

import copy
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from studies import Row, run_studies
from torch import nn

from mpcourse.pruning import (
    Movement,
    apply_masks,
    global_masks,
    gradient,
    layer_masks,
    magnitude,
    random_scores,
    snip,
    sparsity_of,
)
from mpcourse.sparse_training import (
    GradualPruner,
    Regrowth,
    cubic_sparsity,
    redraw,
    rewind,
    shuffle_masks,
    snapshot,
)
from mpcourse.training.in_memory import LOSS, RATE, TUNING_RATE, Data, train
from mpcourse.training.nets import lenet_300_100

COMMAND = "python data/pruning_study.py"
WAYS = ("at once", "gradual", "ticket", "redrawn", "shuffled", "regrowth", "random mask")
CHANCE = 0.1  # of a net with an empty layer: one answer for all images, as many of each digit

Masks = dict[str, torch.Tensor]
State = dict[str, torch.Tensor]


class Budget(NamedTuple):
    """How long and how far: epochs of the dense net, epochs after pruning, sparsities."""

    epochs: int = 15
    tuning: int = 5
    sparsities: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95, 0.98)


DRY = Budget(epochs=1, tuning=1, sparsities=(0.9,))


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


def compare_ways(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Reach each sparsity in several ways, each with epochs + tuning epochs of training."""
    torch.manual_seed(seed)
    dense = lenet_300_100().to(data.place)
    first = snapshot(dense)
    train(dense, data, budget.epochs, RATE)
    rows = []
    for sparsity in budget.sparsities:
        masks = global_masks(magnitude(dense), sparsity)
        for way in WAYS:
            model = copy.deepcopy(dense)
            _walk(way, model, first, masks, data, budget)
            row = {"way": way, "sparsity": sparsity, "seed": seed, "dense": data.accuracy(dense)}
            rows.append({**row, "accuracy": data.accuracy(model)})
    return rows


def _walk(
    way: str, model: nn.Module, first: State, masks: Masks, data: Data, budget: Budget
) -> None:
    """Take a trained net to the sparsity of the masks, in place."""
    if way == "at once":
        apply_masks(model, masks)
        train(model, data, budget.tuning, TUNING_RATE)
    elif way == "gradual":
        end = _three_quarters(budget.tuning, data)
        target = partial(cubic_sparsity, final=sparsity_of(masks), end=end)
        train(model, data, budget.tuning, TUNING_RATE, [GradualPruner(model, target, every=8)])
    else:
        _start_again(way, model, first, masks, data, budget)


def _start_again(
    way: str, model: nn.Module, first: State, masks: Masks, data: Data, budget: Budget
) -> None:
    """The ways that train a sparse net from its first weights, or from new ones."""
    hooks, epochs = [], budget.epochs + budget.tuning
    rewind(model, first)
    if way == "shuffled":
        masks = shuffle_masks(masks)
    if way in ("regrowth", "random mask"):
        masks = layer_masks(random_scores(model), sparsity_of(masks))
    if way == "regrowth":
        hooks = [Regrowth(model, masks, every=32, end=_three_quarters(epochs, data))]
    else:
        apply_masks(model, masks)
    if way == "redrawn":
        redraw(model)
    train(model, data, epochs, RATE, hooks)


def _three_quarters(epochs: int, data: Data) -> int:
    """Steps after which the masks stay as they are, so that the last quarter can settle."""
    return max(1, epochs * len(data.shuffled) * 3 // 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the two recordings."""
    studies = {"pruning_criteria.csv": compare_criteria, "sparse_training.csv": compare_ways}
    return run_studies(
        studies, (Budget(), DRY), command=COMMAND, about=__doc__, arguments=arguments
    )


if __name__ == "__main__":
    sys.exit(main())
