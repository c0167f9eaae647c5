"""Sparse training by pairs of five seeds: `python data/sparse_study.py`.

Writes three tables into `data/` for page `sparse_training`. `sparse_rates.csv`: in
`sparse_training.csv` a trained net is pruned within a few epochs at a small learning rate; here it
gets the large rate and more epochs, and so does the dense net, so what is compared has been trained
equally long.
`sparse_pairs.csv`: small dense nets, tickets from an early step, new weights and longer training,
tickets in rounds. `sparse_rivals.csv`: small dense nets of three sizes, each at two rates.
"""

import copy
import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from studies import Row, run_studies
from torch import nn

from mpcourse.pruning import apply_masks, global_masks, magnitude
from mpcourse.sparse_training import (
    GradualPruner,
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
# as many weights, as many bytes with the bits of a mask, twice the bytes
RIVALS = SMALL, (26, 40), (50, 50)


class Budget(NamedTuple):
    """How long and how far: epochs of the dense net and after pruning, sparsities, and so on."""

    epochs: int = 15
    tuning: int = 20
    sparsities: tuple[float, ...] = (11 / 12, 0.95)  # 11/12: twelve times fewer are left
    ticket_epochs: tuple[int, ...] = (5, 20)
    rounds: tuple[tuple[int, int], ...] = ((1, 3), (1, 12), (4, 3))  # how many, epochs of each


DRY = Budget(1, 1, (0.9,), (1,), ((1, 1),))


def compare_at_full_rate(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Train a net, then train it on at the same rate, pruned in each way or not at all."""
    torch.manual_seed(seed)
    dense = lenet_300_100().to(data.place)
    train(dense, data, budget.epochs, RATE)
    longer = copy.deepcopy(dense)
    train(longer, data, budget.tuning, RATE)
    known = {"dense": data.accuracy(dense), "dense_longer": data.accuracy(longer)}
    rows = []
    for sparsity in budget.sparsities:
        for way in WAYS:
            model = _pruned(dense, way, sparsity, data, budget)
            row = {"way": way, "sparsity": round(sparsity, 4), "seed": seed, **known}
            rows.append({**row, "accuracy": data.accuracy(model)})
    return rows


def _pruned(dense: nn.Module, way: str, sparsity: float, data: Data, budget: Budget) -> nn.Module:
    """A copy of a dense net, pruned in one way and trained on."""
    model, hooks = copy.deepcopy(dense), []
    if way == "at once":
        apply_masks(model, global_masks(magnitude(model), sparsity))
    else:
        end = max(1, budget.tuning * len(data.shuffled) * 3 // 4)  # the last quarter settles
        target = partial(cubic_sparsity, final=sparsity, end=end)
        hooks = [GradualPruner(model, target, every=8)]
    train(model, data, budget.tuning, RATE, hooks)
    return model


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


def compare_rivals(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Small dense nets, trained as long as the pruned ones; the smallest also as the regrown."""
    long, rows = (budget.epochs, budget.tuning), []
    tries = [(hidden, rate, long) for hidden in RIVALS for rate in (RATE, 2 * RATE)]
    for hidden, rate, plan in [*tries, (SMALL, RATE, (budget.tuning,))]:
        torch.manual_seed(seed)
        model = linear_net(*hidden).to(data.place)
        for epochs in plan:
            train(model, data, epochs, rate)
        row = {"first": hidden[0], "second": hidden[1], "rate": rate, "epochs": sum(plan)}
        rows.append({**row, "seed": seed, "accuracy": data.accuracy(model)})
    return rows


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
        "sparse_rates.csv": compare_at_full_rate,
        "sparse_pairs.csv": compare_pairs,
        "sparse_rivals.csv": compare_rivals,
    }
    budgets = Budget(), DRY
    return run_studies(studies, budgets, command=COMMAND, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
