"""Where a mixture of experts wins: facts to learn by heart, `python data/facts_study.py`.

A fact is a pair of numbers below `count`, and the label that was drawn for it, one of 64. Nothing
can be found out from other facts: a net has to hold each in its parameters. A pair's embeddings are
added up; an MLP or a mixture of eight works on the sum, and a linear layer names the label.

`data/facts.csv`: each net with each of its learning rates and the first seed, and with the best of
them and two more seeds. `loss_50` and so on are means of the 50 steps before; `known` is the share
of all facts that are right at the end. `times_mixture` is the median of the step's time divided by
the mixture's, measured in turns before the training.

`data/facts_falling.csv`: rates that fall to 0 along a line, chosen in the same way. The mixture,
the same with a router that stays as it was drawn, and the dense net of about the same time, this
one also with four times the steps (one rate). `loss_1` is the mean over the first twelfth of
`steps`, and so on.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from studies import Row, run_studies
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from mpcourse.devices import measure_together, median_interval
from mpcourse.training.in_memory import Data
from mpcourse.transformer import Mixture

COMMAND = "python data/facts_study.py"
WIDTH, LABELS, BATCH, BALANCE = 128, 64, 2048, 0.01
RATES = (0.0015, 0.003, 0.006, 0.012)
SEEDS = range(3)
STEPS, DRY, POINTS, TURNS = 600, 12, 12, 21  # points: means of the loss along a training
FALLING = (0.006, 0.012, 0.024)  # where they start: a rate that falls can start higher
LONGER = 4  # times the steps


@dataclass(frozen=True)
class Net:
    """What works on the sum of the embeddings, and how many numbers make the pairs."""

    hidden: int
    experts: int = 1  # one: a dense MLP
    count: int = 192
    rates: tuple[float, ...] = RATES
    learns: bool = True  # the router


MIXTURE, DENSE = "mixture", "dense, same time"
NETS = {
    MIXTURE: Net(256, 8),
    DENSE: Net(512),
    "mixture, fewer facts": Net(256, 8, count=96),
    "dense, same time, fewer facts": Net(512, count=96),
    "dense, same parameters": Net(2056, rates=RATES[:2]),  # long steps, so fewer rates
}
FALLS = {  # the net, and times how many steps
    MIXTURE: (Net(256, 8, rates=FALLING), 1),
    f"{MIXTURE}, frozen router": (Net(256, 8, rates=FALLING, learns=False), 1),
    DENSE: (Net(512, rates=FALLING), 1),
    f"{DENSE}, {LONGER} times the steps": (Net(512, rates=FALLING[1:2]), LONGER),
}


class Facts(nn.Module):
    """Pairs (N, 2) -> scores of the labels (N, 64)."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(net.count, WIDTH) for _ in range(2))
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
    net: Net, seed: int, rate: float, place: object, falls_over: int | None = None
) -> tuple[Facts, tuple[Tensor, Tensor], Callable[[], float]]:
    """A net, all its facts, and a function of one training step, which gives the loss.

    falls_over: After so many steps the rate is 0; None: it stays.
    """
    torch.manual_seed(seed)
    model, draw = Facts(net).to(place), torch.Generator().manual_seed(seed)
    pairs = torch.cartesian_prod(*2 * [torch.arange(net.count)]).to(place)
    labels = torch.randint(LABELS, (len(pairs),), generator=draw).to(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    rates = LambdaLR(optimizer, lambda done: 1 - done / falls_over if falls_over else 1.0)

    def step() -> float:
        these = torch.randint(len(pairs), (BATCH,), generator=draw).to(place)
        loss = nn.functional.cross_entropy(model(pairs[these]), labels[these])
        optimizer.zero_grad()
        (loss + BALANCE * getattr(model.body, "balance", 0.0)).backward()
        optimizer.step()
        rates.step()
        return loss.item()

    return model, (pairs, labels), step


@functools.cache
def train_one(
    net: Net, seed: int, rate: float, place: object, steps: int, falls: bool = False
) -> dict[str, float]:
    """The means of the loss along a training, and the share of facts that is known then."""
    model, (pairs, labels), step = prepared(net, seed, rate, place, steps if falls else None)
    each, found = max(1, steps // POINTS), {}
    for point in range(each, steps + 1, each):
        found[f"loss_{point}"] = round(sum(step() for _ in range(each)) / each, 4)
    with torch.no_grad():
        right = (model(pairs).argmax(1) == labels).double().mean()
    return found | {"known": round(right.item(), 4)}


def best_rate(net: Net, place: object, steps: int, falls: bool = False) -> float:
    """By the last mean of the loss, with the first seed."""
    each = max(1, steps // POINTS)
    last = f"loss_{steps // each * each}"
    return min(
        net.rates, key=lambda rate: train_one(net, SEEDS[0], rate, place, steps, falls)[last]
    )


def in_turns(seed: int, place: object) -> dict[str, Row]:
    """The step of each net in milliseconds, and in multiples of the mixture's in the same turn."""
    steps = {name: prepared(net, seed, RATES[0], place)[2] for name, net in NETS.items()}
    clocked = measure_together(steps, repeats=TURNS)
    return {
        name: {
            "step_ms": round(timing.median_s * 1e3, 2),
            "times_mixture": round(
                median_interval(
                    [a / b for a, b in zip(timing.times_s, clocked[MIXTURE].times_s, strict=True)]
                )[1],
                3,
            ),
        }
        for name, timing in clocked.items()
    }


def compare(data: Data, seed: int, steps: int) -> list[Row]:
    """Every net with each rate and the first seed, or with its best; of `data`, the place alone."""
    times, place, rows = in_turns(seed, data.place), data.place, []
    for name, net in NETS.items():
        with torch.device("meta"):
            parameters = sum(p.numel() for p in Facts(net).parameters())
        best = best_rate(net, place, steps)
        for rate in net.rates if seed == SEEDS[0] else [best]:
            row = {"net": name, "facts": net.count**2, "parameters": parameters, "seed": seed}
            row |= {"rate": rate, "best": rate == best} | times[name]
            rows.append(row | train_one(net, seed, rate, place, steps))
    return rows


def falling(data: Data, seed: int, steps: int) -> list[Row]:
    """Nets with rates that fall: as `compare`, the first seed with each rate."""
    rows: list[Row] = []
    for name, (net, times) in FALLS.items():
        best = best_rate(net, data.place, times * steps, True)
        for rate in net.rates if seed == SEEDS[0] else [best]:
            row = {"net": name, "facts": net.count**2, "seed": seed, "rate": rate}
            row |= {"best": rate == best, "steps": times * steps}
            *losses, known = train_one(net, seed, rate, data.place, times * steps, True).values()
            row |= {f"loss_{twelfth}": loss for twelfth, loss in enumerate(losses, 1)}
            rows.append(row | {"known": known})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recording."""
    return run_studies(
        {"facts.csv": compare, "facts_falling.csv": falling},
        (STEPS, DRY),
        command=COMMAND,
        about=__doc__,
        arguments=arguments,
        seeds=SEEDS,
    )


if __name__ == "__main__":
    sys.exit(main())
