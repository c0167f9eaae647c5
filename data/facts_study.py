"""Where a mixture of experts wins: facts to learn by heart, `python data/facts_study.py`.

A fact is a pair of numbers below `count`, and the label that was drawn for it, one of 64. Nothing
can be found out from other facts: a net has to hold each in its parameters. A pair's embeddings are
added up; an MLP or a mixture of eight works on the sum, and a linear layer names the label.

`data/facts.csv`: the mixture, the same with a router that stays as it was drawn, and dense nets of
three widths, with as many steps as take about the same time. Rates fall to 0 along a line. Each net
has each rate with the first seed, and the best of them with two more seeds. `loss_1` is the mean
over the first twelfth of `steps`, and so on; `known` is the share of all facts that are right at
the end.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from studies import Row, run_studies
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from mpcourse.training.in_memory import Data
from mpcourse.transformer import Mixture

COMMAND = "python data/facts_study.py"
WIDTH, LABELS, BATCH, BALANCE = 128, 64, 2048, 0.01
COUNT = 192  # of the numbers that make the pairs
RATES = (0.006, 0.012, 0.024)  # where they start to fall
SEEDS = range(3)
STEPS, DRY, POINTS = 600, 12, 12  # points: means of the loss along a training


@dataclass(frozen=True)
class Net:
    """What works on the sum of the embeddings, and how it is trained."""

    hidden: int
    experts: int = 1  # one: a dense MLP
    learns: bool = True  # the router
    share: float = 1.0  # of the steps: a wider net's take longer


MIXTURE, DENSE = "mixture", "dense, hidden size 512"
NETS = {
    MIXTURE: Net(256, 8),
    f"{MIXTURE}, frozen router": Net(256, 8, learns=False),
    DENSE: Net(512),
    "dense, hidden size 1024": Net(1024, share=0.56),
    "dense, hidden size 2048": Net(2048, share=0.3),
}


class Facts(nn.Module):
    """Pairs (N, 2) -> scores of the labels (N, 64)."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(COUNT, WIDTH) for _ in range(2))
        self.body = Mixture(WIDTH, net.hidden, net.experts)
        self.body.router.requires_grad_(net.learns)
        if net.experts == 1:
            self.body = self.body.experts[0]
        self.head = nn.Linear(WIDTH, LABELS)

    def forward(self, pairs: Tensor) -> Tensor:
        """As a block of a decoder: what the MLP or mixture computes is added to its input."""
        x = sum(table(column) for table, column in zip(self.embeddings, pairs.T, strict=True))
        return self.head(x + self.body(x))


def prepared(
    net: Net, seed: int, rate: float, place: object, steps: int
) -> tuple[Facts, tuple[Tensor, Tensor], Callable[[], float]]:
    """A net, all its facts, and a function of one of `steps` training steps, giving the loss."""
    torch.manual_seed(seed)
    model, draw = Facts(net).to(place), torch.Generator().manual_seed(seed)
    pairs = torch.cartesian_prod(*2 * [torch.arange(COUNT)]).to(place)
    labels = torch.randint(LABELS, (len(pairs),), generator=draw).to(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    rates = LambdaLR(optimizer, lambda done: 1 - done / steps)

    def step() -> float:
        these = torch.randint(len(pairs), (BATCH,), generator=draw).to(place)
        loss = nn.functional.cross_entropy(model(pairs[these]), labels[these])
        optimizer.zero_grad()
        (loss + BALANCE * getattr(model.body, "balance", 0.0)).backward()
        optimizer.step()
        rates.step()
        return loss.item()

    return model, (pairs, labels), step


def steps_of(net: Net, steps: int) -> int:
    """The net's share of the steps, as many for each point."""
    return POINTS * max(1, round(net.share * steps / POINTS))


@functools.cache
def train_one(net: Net, seed: int, rate: float, place: object, steps: int) -> list[float]:
    """The means of the loss along a training, and the share of facts that is known then."""
    steps = steps_of(net, steps)
    model, (pairs, labels), step = prepared(net, seed, rate, place, steps)
    each = steps // POINTS
    losses = [round(sum(step() for _ in range(each)) / each, 4) for _ in range(POINTS)]
    with torch.no_grad():
        right = (model(pairs).argmax(1) == labels).double().mean()
    return [*losses, round(right.item(), 4)]


def best_rate(net: Net, place: object, steps: int) -> float:
    """By the last mean of the loss, with the first seed."""
    return min(RATES, key=lambda rate: train_one(net, SEEDS[0], rate, place, steps)[-2])


def compare(data: Data, seed: int, steps: int) -> list[Row]:
    """Every net with each rate and the first seed, or with its best; of `data`, the place alone."""
    rows: list[Row] = []
    for name, net in NETS.items():
        best = best_rate(net, data.place, steps)
        for rate in RATES if seed == SEEDS[0] else [best]:
            row = {"net": name, "seed": seed, "rate": rate}
            row |= {"best": rate == best, "steps": steps_of(net, steps)}
            *losses, known = train_one(net, seed, rate, data.place, steps)
            row |= {f"loss_{twelfth}": loss for twelfth, loss in enumerate(losses, 1)}
            rows.append(row | {"known": known})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recording."""
    return run_studies(
        {"facts.csv": compare},
        (STEPS, DRY),
        command=COMMAND,
        about=__doc__,
        arguments=arguments,
        seeds=SEEDS,
    )


if __name__ == "__main__":
    sys.exit(main())
