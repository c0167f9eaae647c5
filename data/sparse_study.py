"""Sparse training by pairs of ten seeds: `python data/sparse_study.py`.

Writes three tables into `data/` for page `sparse_training`. All nets train at four rates each (or
five), with the accuracy on held-out digits, by which a rate can be chosen.
`sparse_pairs.csv`: under one mask a ticket, new weights and weights that train on; a small dense
net.
`sparse_far.csv`: 99% zeros after little training, at once and bit by bit, along two schedules; the
same net unpruned, and small dense nets; and on 14 x 14 pixels, and with convolutions. `stored`
counts the values of a file: of all weights, or in a sparse file of those left and of the zeros
between far ones.
`sparse_regrown.csv`: growth by gradient, at random and none from one mask; none from a mask that
has more weights where pixels vary more; small dense nets.
"""

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from studies import Row, judged, run_studies
from torch import nn

from mpcourse.capstone.trials import Digits
from mpcourse.pruning import (
    apply_masks,
    global_masks,
    layer_masks,
    magnitude,
    masks_of,
    random_scores,
)
from mpcourse.sparse_training import (
    GradualPruner,
    KeepMasks,
    Regrowth,
    cubic_sparsity,
    rewind,
    snapshot,
)
from mpcourse.training.in_memory import RATE, Data, train
from mpcourse.training.nets import lenet_300_100, linear_net

COMMAND = "python data/sparse_study.py"
SMALL = 16, 29  # 13,298 weights in a dense net: as many as 95% zeros leave of LeNet-300-100's
DENSE = {"dense": SMALL, "dense, twice": (32, 36)}  # as many bytes as 95% zeros with their places
# as many bytes as 99% zeros in a file with a byte beside each value, twice, four times as many
FAR_RIVALS, RATES = ((5, 10), (10, 11), (19, 38)), (0.02, RATE, 0.1, 0.2)
# no hidden layer, half the bytes; as many bytes, and twice as many, on 14 x 14 pixels
POOLED_RIVALS = (0, 0), (17, 21), (33, 31)
CONV_RIVALS = (9, 11), (12, 21)  # as many bytes, and twice as many, with two convolutions
WIDE, WIDE_LEFT = (24, 48), 3000  # channels, pruned to weights: as many bytes again
BY_SPREAD = "fixed, by spread"


class Budget(NamedTuple):
    """How long and how far: epochs of the dense net and after pruning, and so on."""

    pairs: tuple[int, int] = (15, 20)  # epochs of the dense net and under the mask
    far: tuple[float, int, int] = (0.99, 5, 10)  # sparsity, epochs of the dense net and after
    regrown: int = 15  # epochs
    seeds: tuple[int, ...] = (0, 5)  # added to each seed: twice as many
    rates: tuple[float, ...] = RATES
    large: tuple[float, ...] = (0.4,)  # as well: nets that are sparse at first want large ones


DRY = Budget((1, 1), (0.9, 1, 1), 1, (0,), (RATE,), (0.1,))


def _pruned(
    dense: nn.Module, way: str, sparsity: float, data: Data, epochs: int, rate: float
) -> nn.Module:
    """A copy of a dense net, pruned in one way and trained on."""
    model, hooks = copy.deepcopy(dense), []
    if way == "at once":
        apply_masks(model, global_masks(magnitude(model), sparsity))
    else:
        schedule = same_share if way == "same share" else cubic_sparsity
        target = partial(schedule, final=sparsity, end=_three_quarters(data, epochs))
        hooks = [GradualPruner(model, target, every=8)]
    train(model, data, epochs, rate, hooks)
    return model


def same_share(step: int, *, final: float, end: int) -> float:
    """The sparsity at a step where each stroke takes the same share of the weights left."""
    return 1 - (1 - final) ** min(step / end, 1)


def pooled_net(first: int, second: int) -> nn.Sequential:
    """As `linear_net`, but 196-first-second-10 (0, 0: 196-10), as a pixel is the mean of four."""
    if not first:
        return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 10))
    layers = dict(linear_net(first, second).named_children()) | {"fc1": nn.Linear(196, first)}
    return nn.Sequential(OrderedDict(pool=nn.AvgPool2d(2), **layers))


def strided_net(first: int, second: int) -> nn.Sequential:
    """Two convolutions with so many channels, both with stride 2, and one linear layer."""
    layers = {"conv1": nn.Conv2d(1, first, 5, stride=2), "relu1": nn.ReLU()}
    layers |= {"conv2": nn.Conv2d(first, second, 3, stride=2), "relu2": nn.ReLU()}
    layers |= {"flatten": nn.Flatten(), "fc": nn.Linear(25 * second, 10)}
    return nn.Sequential(OrderedDict(layers))


def _three_quarters(data: Data, epochs: int) -> int:
    """The step from which masks stay: the last quarter of the training settles."""
    return max(1, epochs * len(data.shuffled) * 3 // 4)


def _runs(first: int, budget: Budget, *large: float) -> Iterator[tuple[int, float]]:
    """Each seed at each rate, and torch's generator at the seed."""
    for seed, rate in product([first + more for more in budget.seeds], [*budget.rates, *large]):
        torch.manual_seed(seed)
        yield seed, rate


def compare_pairs(data: Data, first: int, budget: Budget) -> list[Row]:
    """Under one mask: first weights, new ones, trained ones; a small dense net as long trained."""
    digits, rows = Digits(data.place, 64), []
    for seed, rate in _runs(first, budget):
        net = lenet_300_100().to(data.place)
        states = {"ticket": snapshot(net), "redrawn": snapshot(lenet_300_100().to(data.place))}
        train(net, digits, budget.pairs[0], rate)
        masks, states["trained"] = global_masks(magnitude(net), 0.95), snapshot(net)
        models = {way: _under(masks, state) for way, state in states.items()}
        for model in models.values():
            train(model, digits, budget.pairs[1], rate)
        models["dense"] = linear_net(*SMALL).to(data.place)
        for epochs in budget.pairs:
            train(models["dense"], digits, epochs, rate)
        for way, model in models.items():
            rows.append({"way": way, "rate": rate, "seed": seed} | judged(digits, model))
    return rows


def compare_far(data: Data, first: int, budget: Budget) -> list[Row]:
    """Far pruned nets and small dense ones, equally long trained on all but the held-out digits."""
    digits, rows = Digits(data.place, 64), []
    sparsity, before, after = budget.far

    def add(way: str, hidden: tuple[int, int], model: nn.Module) -> None:
        row = {"way": way, "first": hidden[0], "second": hidden[1], "rate": rate, "seed": seed}
        rows.append(row | judged(digits, model) | {"stored": stored(model)})

    def add_rivals(way: str, net: Callable[..., nn.Module], sizes: Sequence[tuple]) -> None:
        for hidden in sizes:
            torch.manual_seed(seed)
            model = net(*hidden).to(data.place)
            for epochs in (before, after):
                train(model, digits, epochs, rate)
            add(way, hidden, model)

    for seed, rate in _runs(first, budget):
        dense = lenet_300_100().to(data.place)
        train(dense, digits, before, rate)
        for way in ("at once", "gradual"):
            add(way, (300, 100), _pruned(dense, way, sparsity, digits, after, rate))
        add_rivals("dense", linear_net, FAR_RIVALS)
        torch.manual_seed(seed)  # so that what follows does not depend on the nets above
        add("same share", (300, 100), _pruned(dense, "same share", sparsity, digits, after, rate))
        torch.manual_seed(seed)
        train(dense, digits, after, rate)
        add("unpruned", (300, 100), dense)

        torch.manual_seed(seed)
        pooled = pooled_net(300, 100).to(data.place)
        train(pooled, digits, before, rate)
        # as many weights are left; a new net, so that the generator stands where it was recorded
        share = 1 - (1 - sparsity) * _weights(lenet_300_100()) / _weights(pooled)
        add("gradual, pooled", (300, 100), _pruned(pooled, "gradual", share, digits, after, rate))
        add_rivals("dense, pooled", pooled_net, POOLED_RIVALS)

        torch.manual_seed(seed)
        wide = strided_net(*WIDE).to(data.place)
        train(wide, digits, before, rate)
        share = 1 - WIDE_LEFT / _weights(wide)
        add("gradual, conv", WIDE, _pruned(wide, "gradual", share, digits, after, rate))
        add_rivals("dense, conv", strided_net, CONV_RIVALS)
    return rows


def stored(model: nn.Module) -> int:
    """The values in a model's file; in a sparse one a byte beside each counts the zeros before it.

    The count starts anew in each row, or output channel. It reaches 255: then a zero is stored as
    a value of its own.
    """
    values = 0 if (masks := masks_of(model)) else _weights(model)
    for row in (row for mask in masks.values() for row in mask.flatten(1)):
        places = row.nonzero().flatten()
        zeros = places.diff(prepend=places.new_tensor([-1])) - 1
        values += len(places) + int((zeros // 256).sum())
    return values


def _weights(model: nn.Module) -> int:
    return sum(size.numel() for size in magnitude(model).values())


def compare_regrown(data: Data, first: int, budget: Budget) -> list[Row]:
    """95% zeros from a random mask: growth by gradient, at random, none; none by spread; dense."""
    digits, rows = Digits(data.place, 64), []
    end = _three_quarters(digits, budget.regrown)
    for seed, rate in _runs(first, budget, *budget.large):
        net = lenet_300_100().to(data.place)
        scores = random_scores(net)
        shares = erk_sparsities(scores, 0.05)
        drawn = {"fixed": scores, BY_SPREAD: by_spread(scores, digits.all_train[0])}
        masks = {way: layer_masks(each, shares) for way, each in drawn.items()}
        nets = dict.fromkeys(("by gradient", "at random", "fixed"), net)
        nets |= {way: linear_net(*sizes).to(data.place) for way, sizes in DENSE.items()}
        nets[BY_SPREAD] = net
        for way, start in nets.items():
            model, hooks = copy.deepcopy(start), []
            if way in masks:
                hooks = [KeepMasks(model, masks[way])]
            elif way not in DENSE:
                hooks = [Regrowth(model, masks["fixed"], every=32, end=end)]
            if way == "at random":
                hooks = [_any_gradient(model), *hooks]
            torch.manual_seed(seed)  # all ways see the same batches
            train(model, digits, budget.regrown, rate, hooks)
            rows.append({"way": way, "rate": rate, "seed": seed} | judged(digits, model))
    return rows


def by_spread(scores: dict[str, torch.Tensor], images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Scores between 0 and 1, higher in fc1 where a pixel's values spread more over the images."""
    spread = images.flatten(1).std(0)
    return scores | {"fc1": scores["fc1"] ** (1 / (spread + 1e-3))}


def _any_gradient(model: nn.Module) -> Callable[..., None]:
    """A hook after the step: random numbers in place of gradients, for regrowth to look at."""
    places = torch.Generator(next(model.parameters()).device).manual_seed(0)

    def draw(*_: object) -> None:
        for weight in model.parameters():
            weight.grad.uniform_(generator=places)

    return draw


def erk_sparsities(sizes: dict[str, torch.Tensor], left: float) -> dict[str, float]:
    """The sparsity of each layer where weights left go with inputs plus outputs (RigL's ERK)."""
    of_all = left * sum(size.numel() for size in sizes.values())
    ratio = of_all / sum(sum(size.shape) for size in sizes.values())
    return {name: 1 - ratio * sum(size.shape) / size.numel() for name, size in sizes.items()}


def _under(masks: dict, state: dict) -> nn.Module:
    """A net with these weights under masks."""
    model = lenet_300_100().to(next(iter(masks.values())).device)
    apply_masks(model, masks)
    rewind(model, state)
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
