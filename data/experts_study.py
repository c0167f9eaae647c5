"""A mixture of experts against dense nets: `python data/experts_study.py`.

The decoder of page `experts`, narrow and with one block, so that its MLP is what it lacks. Two
tables. Multiply-adds are those of a token in what stands in the MLP's place, the router's too.

- `data/experts_rates.csv`: each net with each of six learning rates, trained without the last
  tenth of the training text and judged on that tenth, with three seeds; its best two then with
  seven more.
- `data/experts.csv`, ten seeds: each net with the rate of the lowest mean loss of ten there,
  trained on the whole training text and judged on the test text.
"""

import functools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from studies import Row, run_studies
from torch import Tensor, nn

from mpcourse.training.in_memory import Data
from mpcourse.transformer import (
    Decoder,
    Mixture,
    load_prose,
    next_token_loss,
    text_loss,
    train_decoder,
    with_experts,
)

COMMAND = "python data/experts_study.py"
CONTEXT, WIDTH, HIDDEN, EXPERTS = 64, 16, 64, 8
RATES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
SEEDS = range(10)  # seeds of one net differ by about as much as nets do
RATE_SEEDS = (0, 1, 2)  # of all rates; three seeds can be misled, so the best two get all seeds
FINALISTS = 2
CLIP = 1.0  # the gradients' norm at most, as transformers are usually trained
STEPS, DRY = 1000, 10  # of the optimizer


@dataclass(frozen=True)
class Net:
    """What stands in the place of the MLP, and how it is trained."""

    hidden: int
    experts: int = 1  # one: a dense MLP
    balance: float = 0.0  # how much of the balance loss is added
    capacity: float | None = None
    longer: float = 1.0  # times as many steps
    frozen: bool = False  # the router stays as drawn

    @property
    def multiply_adds(self) -> int:
        """Of a token: two matrices, and the router's."""
        return WIDTH * (2 * self.hidden + self.experts * (self.experts > 1))


SAME_COST = HIDDEN + EXPERTS // 2  # what the router computes, in inner numbers
NETS = {
    "dense, same cost": Net(SAME_COST),
    "mixture": Net(HIDDEN, EXPERTS, 0.01),
    "mixture, frozen router": Net(HIDDEN, EXPERTS, 0.01, frozen=True),
    "mixture, no balance loss": Net(HIDDEN, EXPERTS),
    "mixture, capacity 1.25": Net(HIDDEN, EXPERTS, 0.01, 1.25),
    "dense, same time": Net(300),  # a step takes about as long as a mixture's: page `experts`
    "dense, same parameters": Net(520),
    "dense, same cost, 1.75 times the steps": Net(SAME_COST, longer=1.75),
}


def build(net: Net, vocabulary: int, seed: int) -> Decoder:
    """A decoder of one block, and the net in it."""
    torch.manual_seed(seed)
    model = Decoder(vocabulary, WIDTH, heads=4, layers=1, context=CONTEXT)
    if net.experts > 1:
        model = with_experts(model, net.hidden, net.experts, capacity=net.capacity)
        for block in model.blocks:
            block.mlp.router.requires_grad_(not net.frozen)
        return model
    model = with_experts(model, net.hidden, 1)
    for block in model.blocks:
        block.mlp = block.mlp.experts[0]
    return model


def train_one(
    net: Net, rate: float, seed: int, text: Tensor, vocabulary: int, steps: int
) -> tuple[Decoder, list[float]]:
    """A trained net and the loss of each step, without the balance loss."""
    model = build(net, vocabulary, seed).to(text.device)
    mixtures = [module for module in model.modules() if isinstance(module, Mixture)]

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = next_token_loss(model(inputs), targets)
        (loss + net.balance * sum(mixture.balance for mixture in mixtures)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        return loss.detach()

    sizes = {"steps": round(net.longer * steps), "context": CONTEXT, "batch_size": 32}
    parameters = [*model.parameters()]
    return model, train_decoder(step, parameters, text, rate=rate, seed=seed, **sizes)


@functools.cache
def found_with(net: Net, rate: float, seed: int, place: object, steps: int) -> float:
    """The loss on the last tenth of the training text, after training on the others."""
    text = load_prose()
    tokens = text.train.to(place)
    cut = len(tokens) - len(tokens) // 10
    model, _ = train_one(net, rate, seed, tokens[:cut], len(text.characters), steps)
    return text_loss(model, tokens[cut:], CONTEXT)


def try_rates(data: Data, seed: int, steps: int) -> list[Row]:
    """Every net with what it tries with this seed; of `data`, only the place is used."""
    return [
        {
            "net": name,
            "rate": rate,
            "seed": seed,
            "validation_loss": round(found_with(net, rate, seed, data.place, steps), 4),
        }
        for name, net in NETS.items()
        for rate in (RATES if seed in RATE_SEEDS else finalists(net, data.place, steps))
    ]


def finalists(net: Net, place: object, steps: int) -> list[float]:
    """The best of all that is tried, by the first seeds."""
    return ranked(net, RATES, RATE_SEEDS, place, steps)[:FINALISTS]


def best_rate(net: Net, place: object, steps: int) -> float:
    """The best of the finalists, by all seeds."""
    return ranked(net, finalists(net, place, steps), SEEDS, place, steps)[0]


def ranked(
    net: Net, tried: Sequence[float], seeds: Sequence[int], place: object, steps: int
) -> list[float]:
    """By their mean loss on the last tenth of the training text, the lowest first."""
    seeds = seeds if steps == STEPS else seeds[:1]
    return sorted(
        tried,
        key=lambda rate: statistics.mean(found_with(net, rate, s, place, steps) for s in seeds),
    )


def compare(data: Data, seed: int, steps: int) -> list[Row]:
    """Every net with its rate, judged on the test text."""
    text, rows = load_prose(), []
    train, test = text.train.to(data.place), text.test.to(data.place)
    for name, net in NETS.items():
        rate = best_rate(net, data.place, steps)
        model, losses = train_one(net, rate, seed, train, len(text.characters), steps)
        late = losses[-max(1, steps // 20) :]
        row = {
            "net": name,
            "seed": seed,
            "rate": rate,
            "multiply_adds": net.multiply_adds,
            "parameters": sum(p.numel() for p in model.parameters()),
            "train_loss": round(sum(late) / len(late), 4),
            "test_loss": round(text_loss(model, test, CONTEXT), 4),
        }
        rows.append(row | load_of(model.blocks[0].mlp))
    return rows


def load_of(module: nn.Module) -> Row:
    """The busiest and the idlest expert's share of the test text; empty for a dense net.

    Read off the last forward, which is that of `text_loss`.
    """
    if not isinstance(module, Mixture):
        return {"busiest": "", "idlest": ""}
    shares = (module.load / module.load.sum()).tolist()
    return {"busiest": round(max(shares), 4), "idlest": round(min(shares), 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recordings."""
    studies = {"experts_rates.csv": try_rates, "experts.csv": compare}
    return run_studies(
        studies, (STEPS, DRY), command=COMMAND, about=__doc__, arguments=arguments, seeds=SEEDS
    )


if __name__ == "__main__":
    sys.exit(main())
