"""A mixture of experts against dense nets: `python data/experts_study.py`.

The decoder of page `experts`, narrow and with one block, so that its MLP is what it lacks. Two
tables. Multiply-adds are those of a token in what stands in the MLP's place, the router's too.

- `data/experts_rates.csv`: each net with each of six learning rates, trained without the last
  tenth of the training text and judged on that tenth, with three seeds; its best two then with
  seven more. `factor` is what the router's rate is multiplied by: 0 if it is frozen. The net with a
  slow router tries five factors with each rate.
- `data/experts.csv`, ten seeds: each net with the rate and factor of the lowest mean loss of ten
  there, trained on the whole training text and judged on the test text.
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
SLOWER = (0.3, 0.1, 0.03, 0.01, 0.003)  # of the other weights' rate; none at all is `frozen`
SEEDS = range(10)  # seeds of one net differ by about as much as nets do
RATE_SEEDS = (0, 1, 2)  # of all rates; three seeds can be misled, so the best two get all seeds
FINALISTS = 2
Pace = tuple[float, float]  # the learning rate, and the router's in multiples of it
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
    factors: tuple[float, ...] = (1.0,)  # tried: the router's rate in those of the others
    table: bool = False  # no router: each character has its expert
    told: bool = False  # the dense MLP is told the character again, as a table tells its experts

    @property
    def learns(self) -> bool:
        """The router; else it stays as drawn."""
        return any(self.factors)

    @property
    def multiply_adds(self) -> int:
        """Of a token: two matrices, and the router's."""
        return WIDTH * (2 * self.hidden + self.experts * self.routed)

    @property
    def routed(self) -> bool:
        """Whether a router chooses."""
        return self.experts > 1 and not self.table


SAME_COST = HIDDEN + EXPERTS // 2  # what the router computes, in inner numbers
NETS = {
    "dense, same cost": Net(SAME_COST),
    "mixture": Net(HIDDEN, EXPERTS, 0.01),
    "mixture, slow router": Net(HIDDEN, EXPERTS, 0.01, factors=SLOWER),
    "mixture, frozen router": Net(HIDDEN, EXPERTS, 0.01, factors=(0.0,)),
    "mixture, table": Net(SAME_COST, EXPERTS, table=True),
    "mixture, no balance loss": Net(HIDDEN, EXPERTS),
    "mixture, capacity 1.25": Net(HIDDEN, EXPERTS, 0.01, 1.25),
    "mixture, capacity 1.25, no balance loss": Net(HIDDEN, EXPERTS, 0.0, 1.25),
    "dense, same cost, told the character": Net(SAME_COST, told=True),
    "dense, same time": Net(300),  # a step takes about as long as the table's: page `experts`
    "dense, same time, told the character": Net(300, told=True),
    "dense, same parameters": Net(520),
    "dense, same cost, 1.75 times the steps": Net(SAME_COST, longer=1.75),
}


class ByTable(nn.Module):
    """Experts chosen by a table from characters, with weight 1: no router, nothing to balance.

    The most frequent characters are dealt first, each to the expert that has fewest by then
    (balanced hash layers, Roller et al. 2021, arXiv:2106.04426).
    """

    def __init__(self, model: Decoder, mixture: Mixture, vocabulary: int) -> None:
        super().__init__()
        self.experts = mixture.experts
        counts, taken = load_prose().train.bincount(minlength=vocabulary), [0] * len(self.experts)
        table = [0] * vocabulary
        for character in counts.argsort(descending=True, stable=True).tolist():
            table[character] = taken.index(min(taken))
            taken[table[character]] += int(counts[character])
        self.register_buffer("table", torch.tensor(table))
        model.register_forward_pre_hook(self._read)

    def _read(self, _: nn.Module, given: tuple[Tensor]) -> None:
        self.chosen = self.table[given[0].flatten()]

    def forward(self, x: Tensor) -> Tensor:
        """Each token through the expert of its character."""
        tokens, order = x.flatten(0, -2), self.chosen.argsort(stable=True)
        self.load = self.chosen.bincount(minlength=len(self.experts))
        parts = zip(self.experts, tokens[order].split(self.load.tolist()), strict=True)
        rows = torch.cat([expert(part) for expert, part in parts])
        return torch.zeros_like(tokens).index_add(0, order, rows).view(x.shape)


class Told(nn.Module):
    """An MLP with another bias for each character: it costs no multiply-adds."""

    def __init__(self, model: Decoder, mlp: nn.Sequential, vocabulary: int) -> None:
        super().__init__()
        self.up, self.gelu, self.down = mlp
        self.bias = nn.Embedding(vocabulary, self.up.out_features)
        nn.init.zeros_(self.bias.weight)
        model.register_forward_pre_hook(self._read)

    def _read(self, _: nn.Module, given: tuple[Tensor]) -> None:
        self.tokens = given[0]

    def forward(self, x: Tensor) -> Tensor:
        """As the MLP, behind whose first layer the character's bias is added."""
        return self.down(self.gelu(self.up(x) + self.bias(self.tokens)))


def build(net: Net, vocabulary: int, seed: int) -> Decoder:
    """A decoder of one block, and the net in it."""
    torch.manual_seed(seed)
    model = Decoder(vocabulary, WIDTH, heads=4, layers=1, context=CONTEXT)
    if net.experts > 1:
        model = with_experts(model, net.hidden, net.experts, capacity=net.capacity)
        for block in model.blocks:
            block.mlp.router.requires_grad_(net.learns)
            if net.table:
                block.mlp = ByTable(model, block.mlp, vocabulary)
        return model
    model = with_experts(model, net.hidden, 1)
    for block in model.blocks:
        block.mlp = block.mlp.experts[0]
        if net.told:
            block.mlp = Told(model, block.mlp, vocabulary)
    return model


def train_one(
    net: Net, pace: Pace, seed: int, text: Tensor, vocabulary: int, steps: int
) -> tuple[Decoder, list[float]]:
    """A trained net and the loss of each step, without the balance loss."""
    model = build(net, vocabulary, seed).to(text.device)
    mixtures = [module for module in model.modules() if isinstance(module, Mixture)]
    routers = [mixture.router.weight for mixture in mixtures]

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = next_token_loss(model(inputs), targets)
        (loss + net.balance * sum(mixture.balance for mixture in mixtures)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        return loss.detach()

    sizes, (rate, factor) = {"context": CONTEXT, "batch_size": 32}, pace
    parameters, steps = [*model.parameters()], round(net.longer * steps)
    if factor not in (0, 1):  # a frozen router has no gradient: its rate is used for nothing
        rest = [p for p in parameters if not any(p is router for router in routers)]
        parameters = [{"params": rest}, {"params": routers, "factor": factor}]
    return model, train_decoder(step, parameters, text, steps=steps, rate=rate, seed=seed, **sizes)


@functools.cache
def found_with(net: Net, pace: Pace, seed: int, place: object, steps: int) -> float:
    """The loss on the last tenth of the training text, after training on the others."""
    text = load_prose()
    tokens = text.train.to(place)
    cut = len(tokens) - len(tokens) // 10
    model, _ = train_one(net, pace, seed, tokens[:cut], len(text.characters), steps)
    return text_loss(model, tokens[cut:], CONTEXT)


def paces(net: Net) -> list[Pace]:
    """What is tried: each rate with each factor."""
    return [(rate, factor) for factor in net.factors for rate in RATES]


def columns(net: Net, pace: Pace) -> Row:
    """The pace as a recording holds it: without a router there is no factor."""
    return {"rate": pace[0], "factor": pace[1] if net.routed else ""}


def try_rates(data: Data, seed: int, steps: int) -> list[Row]:
    """Every net with what it tries with this seed; of `data`, only the place is used."""
    return [
        {
            "net": name,
            **columns(net, pace),
            "seed": seed,
            "validation_loss": round(found_with(net, pace, seed, data.place, steps), 4),
        }
        for name, net in NETS.items()
        for pace in (paces(net) if seed in RATE_SEEDS else finalists(net, data.place, steps))
    ]


def finalists(net: Net, place: object, steps: int) -> list[Pace]:
    """The best of all that is tried, by the first seeds."""
    return ranked(net, paces(net), RATE_SEEDS, place, steps)[:FINALISTS]


def best_pace(net: Net, place: object, steps: int) -> Pace:
    """The best of the finalists, by all seeds."""
    return ranked(net, finalists(net, place, steps), SEEDS, place, steps)[0]


def ranked(
    net: Net, tried: list[Pace], seeds: Sequence[int], place: object, steps: int
) -> list[Pace]:
    """By their mean loss on the last tenth of the training text, the lowest first."""
    seeds = seeds if steps == STEPS else seeds[:1]
    return sorted(
        tried,
        key=lambda pace: statistics.mean(found_with(net, pace, s, place, steps) for s in seeds),
    )


def compare(data: Data, seed: int, steps: int) -> list[Row]:
    """Every net with its rate, judged on the test text."""
    text, rows = load_prose(), []
    train, test = text.train.to(data.place), text.test.to(data.place)
    for name, net in NETS.items():
        pace = best_pace(net, data.place, steps)
        model, losses = train_one(net, pace, seed, train, len(text.characters), steps)
        late = losses[-max(1, steps // 20) :]
        row = {
            "net": name,
            "seed": seed,
            **columns(net, pace),
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
    if not isinstance(module, Mixture | ByTable):
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
