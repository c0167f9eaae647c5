"""Five seeds of a convolutional net that loses channels: `python data/channel_study.py`.

Writes `data/pruning_channels.csv` (page `pruning`). Each seed trains one net; copies of it lose
channels, those with the smallest norms or drawn ones, and are fine-tuned. The baselines have the
sizes of these nets and new weights: trained for as many epochs in all, at the same rates, or for
twice as many (Liu et al., 2018, arXiv:1810.05270). The test images decide nothing.
"""

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from studies import Row, run_studies
from torch import nn

from mpcourse.pruning import channel_norms, layer_masks, multiply_adds, remove_channels
from mpcourse.sparse_training import redraw
from mpcourse.training.in_memory import RATE, TUNING_RATE, Data, train
from mpcourse.training.nets import conv_net

COMMAND = "python data/channel_study.py"
LAYERS = ("conv1", "conv2", "fc1")


class Budget(NamedTuple):
    """Epochs of the whole net, epochs after channels have left, shares of channels that stay."""

    epochs: int = 8
    tuning: int = 4
    kept: tuple[float, ...] = (0.5, 0.25, 0.125)


DRY = Budget(epochs=1, tuning=1, kept=(0.25,))


def compare_channels(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Train a net, take channels out of copies of it, fine-tune; train small nets from scratch."""
    torch.manual_seed(seed)
    dense = conv_net().to(data.place)
    train(dense, data, budget.epochs, RATE)
    norms = channel_norms(dense, layers=LAYERS)
    drawn = {name: torch.rand(norm.shape).to(data.place) for name, norm in norms.items()}
    rows = [_row(dense, "whole", 1.0, seed, dense, data, [(budget.tuning, TUNING_RATE)])]
    for kept in budget.kept:
        slim = remove_channels(dense, layer_masks(norms, 1 - kept))
        by_chance = remove_channels(dense, layer_masks(drawn, 1 - kept))
        new = copy.deepcopy(slim)
        redraw(new)
        tune, start = (budget.tuning, TUNING_RATE), (budget.epochs, RATE)
        ways: Mapping[str, tuple] = {
            "norm": (slim, [tune]),
            "random": (by_chance, [tune]),
            "scratch": (new, [start, tune]),
            "scratch twice": (new, [(2 * epochs, rate) for epochs, rate in (start, tune)]),
        }
        for way, (model, phases) in ways.items():
            rows.append(_row(model, way, kept, seed, dense, data, phases))
    return rows


def _row(
    model: nn.Module,
    way: str,
    kept: float,
    seed: int,
    dense: nn.Module,
    data: Data,
    phases: Sequence[tuple[int, float]],
) -> Row:
    """Accuracy before and after the phases (epochs, rate) of training, and the work of a digit."""
    model = copy.deepcopy(model)
    pruned = data.accuracy(model)
    for epochs, rate in phases:
        train(model, data, epochs, rate)
    return {
        "way": way,
        "kept": kept,
        "seed": seed,
        "dense": data.accuracy(dense),
        "pruned": pruned,
        "tuned": data.accuracy(model),
        "multiply_adds": multiply_adds(model, data.test[0][0][:1])[0],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recording."""
    studies = {"pruning_channels.csv": compare_channels}
    budgets = (Budget(), DRY)
    return run_studies(studies, budgets, command=COMMAND, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
