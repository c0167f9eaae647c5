"""Sparse training by pairs of five seeds: `python data/sparse_study.py`.

Writes three tables into `data/` for page `sparse_training`.
`sparse_pairs.csv`: small dense nets, tickets from an early step, new weights and longer training,
tickets in rounds.
`sparse_far.csv`: 99% zeros after little training, at once and bit by bit, and small dense nets, at
four rates each, with the accuracy on held-out digits, by which a rate can be chosen; ten seeds.
`sparse_regrown.csv`: regrowth with equal shares and with those of its paper, and a small dense net.
"""

import copy
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from studies import Row, run_studies
from torch import nn

from mpcourse.capstone.trials import Digits
from mpcourse.pruning import apply_masks, global_masks, layer_masks, magnitude, random_scores
from mpcourse.sparse_training import (
    GradualPruner,
    Regrowth,
    cubic_sparsity,
    redraw,
    rewind,
    snapshot,
)
from mpcourse.training.in_memory import RATE, Data, train
from mpcourse.training.nets import lenet_300_100, linear_net

COMMAND = "python data/sparse_study.py"
WAYS = ("at once", "gradual")
SMALL = 16, 29  # 13,298 weights in a dense net: as many as 95% zeros leave of LeNet-300-100's
# as many bytes as 99% zeros in CSR, twice and four times as many
FAR_RIVALS, FAR_RATES = ((5, 40), (11, 26), (22, 35)), (0.02, RATE, 0.1, 0.2)


class Budget(NamedTuple):
    """How long and how far: epochs of the dense net and after pruning, and so on."""

    epochs: int = 15
    tuning: int = 20
    ticket_epochs: tuple[int, ...] = (5, 20)
    rounds: tuple[tuple[int, int], ...] = ((1, 3), (1, 12), (4, 3))  # how many, epochs of each
    far: tuple[float, int, int] = (0.99, 5, 10)  # sparsity, epochs of the dense net and after
    far_seeds: tuple[int, ...] = (0, 5)  # added to each seed: twice as many
    regrown: int = 8  # epochs


DRY = Budget(1, 1, (1,), ((1, 1),), (0.9, 1, 1), (0,), 1)


def _pruned(
    dense: nn.Module, way: str, sparsity: float, data: Data, epochs: int, rate: float = RATE
) -> nn.Module:
    """A copy of a dense net, pruned in one way and trained on."""
    model, hooks = copy.deepcopy(dense), []
    if way == "at once":
        apply_masks(model, global_masks(magnitude(model), sparsity))
    else:
        target = partial(cubic_sparsity, final=sparsity, end=_three_quarters(data, epochs))
        hooks = [GradualPruner(model, target, every=8)]
    train(model, data, epochs, rate, hooks)
    return model


def _three_quarters(data: Data, epochs: int) -> int:
    """The step from which masks stay: the last quarter of the training settles."""
    return max(1, epochs * len(data.shuffled) * 3 // 4)


def compare_pairs(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Small dense nets, tickets and redrawn weights, rounds: a row for each net."""
    torch.manual_seed(seed)
    net, rows = lenet_300_100().to(data.place), []
    first, early = snapshot(net), {}

    def add(way: str, epochs: int, model: nn.Module) -> None:
        rows.append({"way": way, "epochs": epochs, "seed": seed, "accuracy": data.accuracy(model)})

    def after_step(*_: object) -> None:
        steps.append(1)
        if len(steps) == len(data.shuffled):
            early.update(snapshot(net))  # after the first epoch

    steps: list[int] = []
    train(net, data, budget.epochs, RATE, [after_step])
    small = linear_net(*SMALL).to(data.place)
    for epochs in (budget.epochs, budget.tuning):
        train(small, data, epochs, RATE)
    add("small and dense", budget.epochs + budget.tuning, small)
    masks = global_masks(magnitude(net), 0.95)
    for epochs in budget.ticket_epochs:
        for way, state in {"ticket": first, "early ticket": early, "redrawn": None}.items():
            add(way, epochs, _under(masks, state, data, epochs))
    for number, each in budget.rounds:
        masks = {name: torch.ones_like(mask) for name, mask in masks.items()}
        for done in range(1, number + 1):
            size = magnitude(_under(masks, first, data, each))
            masks = global_masks(size, 1 - 0.02 ** (done / number), within=masks)
        add(f"rounds {number} of {each}", number * each, _under(masks, first, data, 5))
    return rows


def compare_far(data: Data, first: int, budget: Budget) -> list[Row]:
    """Far pruned nets and small dense ones, equally long trained on all but the held-out digits."""
    digits, rows = Digits(data.place, 64), []
    sparsity, before, after = budget.far

    def add(way: str, hidden: tuple[int, int], rate: float, model: nn.Module) -> None:
        row = {"way": way, "first": hidden[0], "second": hidden[1], "rate": rate, "seed": seed}
        judged = {"held_out": digits.accuracy(model), "accuracy": digits.test_accuracy(model)}
        rows.append(row | judged)

    for seed, rate in product([first + more for more in budget.far_seeds], FAR_RATES):
        torch.manual_seed(seed)
        dense = lenet_300_100().to(data.place)
        train(dense, digits, before, rate)
        for way in WAYS:
            add(way, (300, 100), rate, _pruned(dense, way, sparsity, digits, after, rate))
        for hidden in FAR_RIVALS:
            torch.manual_seed(seed)
            model = linear_net(*hidden).to(data.place)
            for epochs in (before, after):
                train(model, digits, epochs, rate)
            add("dense", hidden, rate, model)
    return rows


def compare_regrown(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Regrowth with 95% zeros, by the shares of layers, and a dense net of as many weights."""
    rows = []
    for way in ("equal", "ERK", "dense"):
        torch.manual_seed(seed)
        model = (linear_net(*SMALL) if way == "dense" else lenet_300_100()).to(data.place)
        hooks = []
        if way != "dense":
            scores = random_scores(model)
            masks = layer_masks(scores, erk_sparsities(scores, 0.05) if way == "ERK" else 0.95)
            end = _three_quarters(data, budget.regrown)
            hooks = [Regrowth(model, masks, every=32, end=end)]
        train(model, data, budget.regrown, RATE, hooks)
        rows.append({"way": way, "seed": seed, "accuracy": data.accuracy(model)})
    return rows


def erk_sparsities(sizes: dict[str, torch.Tensor], left: float) -> dict[str, float]:
    """The sparsity of each layer where weights left go with inputs plus outputs (RigL's ERK)."""
    of_all = left * sum(size.numel() for size in sizes.values())
    ratio = of_all / sum(sum(size.shape) for size in sizes.values())
    return {name: 1 - ratio * sum(size.shape) / size.numel() for name, size in sizes.items()}


def _under(masks: dict, state: dict | None, data: Data, epochs: int) -> nn.Module:
    """A net trained under masks, from these weights or from new ones."""
    model = lenet_300_100().to(data.place)
    apply_masks(model, masks)
    redraw(model) if state is None else rewind(model, state)
    train(model, data, epochs, RATE)
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recordings."""
    studies = {
        "sparse_pairs.csv": compare_pairs,
        "sparse_far.csv": compare_far,
        "sparse_regrown.csv": compare_regrown,
    }
    budgets = Budget(), DRY
    return run_studies(studies, budgets, command=COMMAND, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
