"""A mixture of experts against dense nets: `python data/experts_study.py`.

The decoder of page `experts`, narrow and with one block, so that its MLP is what it lacks. Three
tables. Multiply-adds are those of a token in what stands in the MLP's place, the router's too.

- `data/experts_rates.csv`, three seeds: each net with each of six learning rates, trained without
  the last tenth of the training text and judged on that tenth.
- `data/experts.csv`, ten seeds: each net with the rate of the lowest mean loss there, trained on
  the whole training text and judged on the test text.
- `data/experts_letters.csv`, ten seeds: what the expert of a token of the test text says about its
  class (vowel, space and so on), in bits, in each block of a mixture with four, before and after
  training. `class_dealt`: if small letters exchange their classes at random, mean of 20 times;
  `class_shuffled`: if tokens exchange their experts; `next_class`: about the class of the token
  that follows, beyond what the token says, and less what tokens of one letter that exchange their
  experts still seem to say.
"""

import functools
import statistics
import string
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
RATE_SEEDS = (0, 1, 2)
SEEDS = range(10)  # seeds of one net differ by about as much as nets do
CLIP = 1.0  # the gradients' norm at most, as transformers are usually trained
STEPS, DRY = 1000, 10  # of the optimizer
BLOCKS, DEEP_RATE, DEALS = 4, 0.03, 20  # of the decoder whose routers are read
CLASSES = ("aeiou", "bcdfghjklmnpqrstvwxyz", string.ascii_uppercase, " \n")  # the rest is one, too


@dataclass(frozen=True)
class Net:
    """What stands in the place of the MLP, and how it is trained."""

    hidden: int
    experts: int = 1  # one: a dense MLP
    balance: float = 0.0  # how much of the balance loss is added
    capacity: float | None = None
    longer: float = 1.0  # times as many steps
    learns: bool = True  # the router; else it stays as drawn

    @property
    def multiply_adds(self) -> int:
        """Of a token: two matrices, and the router's."""
        return WIDTH * (2 * self.hidden + self.experts * (self.experts > 1))


SAME_COST = HIDDEN + EXPERTS // 2  # what the router computes, in inner numbers
NETS = {
    "dense, same cost": Net(SAME_COST),
    "mixture": Net(HIDDEN, EXPERTS, 0.01),
    "mixture, frozen router": Net(HIDDEN, EXPERTS, 0.01, learns=False),
    "mixture, no balance loss": Net(HIDDEN, EXPERTS),
    "mixture, capacity 1.25": Net(HIDDEN, EXPERTS, 0.01, 1.25),
    "mixture, capacity 1.25, no balance loss": Net(HIDDEN, EXPERTS, 0.0, 1.25),
    "dense, same parameters": Net(520),
    "dense, same cost, 1.5 times the steps": Net(SAME_COST, longer=1.5),
}


def build(net: Net, vocabulary: int, seed: int, layers: int = 1) -> Decoder:
    """A decoder, of one block if no more are asked for, and the net in each."""
    torch.manual_seed(seed)
    model = Decoder(vocabulary, WIDTH, heads=4, layers=layers, context=CONTEXT)
    if net.experts > 1:
        model = with_experts(model, net.hidden, net.experts, capacity=net.capacity)
        for block in model.blocks:
            block.mlp.router.requires_grad_(net.learns)
        return model
    model = with_experts(model, net.hidden, 1)
    for block in model.blocks:
        block.mlp = block.mlp.experts[0]
    return model


def train_one(
    net: Net, rate: float, seed: int, text: Tensor, vocabulary: int, steps: int, layers: int = 1
) -> tuple[Decoder, list[float]]:
    """A trained net and the loss of each step, without the balance loss."""
    model = build(net, vocabulary, seed, layers).to(text.device)
    mixtures = [module for module in model.modules() if isinstance(module, Mixture)]

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = next_token_loss(model(inputs), targets)
        (loss + net.balance * sum(mixture.balance for mixture in mixtures)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        return loss.detach()

    sizes = {"context": CONTEXT, "batch_size": 32}
    parameters, steps = [*model.parameters()], round(net.longer * steps)
    return model, train_decoder(step, parameters, text, steps=steps, rate=rate, seed=seed, **sizes)


@functools.cache
def found_with(net: Net, rate: float, seed: int, place: object, steps: int) -> float:
    """The loss on the last tenth of the training text, after training on the others."""
    text = load_prose()
    tokens = text.train.to(place)
    cut = len(tokens) - len(tokens) // 10
    model, _ = train_one(net, rate, seed, tokens[:cut], len(text.characters), steps)
    return text_loss(model, tokens[cut:], CONTEXT)


def try_rates(data: Data, seed: int, steps: int) -> list[Row]:
    """Every net with every rate; of `data`, only the place is used."""
    if seed not in RATE_SEEDS:
        return []
    return [
        {
            "net": name,
            "rate": rate,
            "seed": seed,
            "validation_loss": round(found_with(net, rate, seed, data.place, steps), 4),
        }
        for name, net in NETS.items()
        for rate in RATES
    ]


def best_rate(net: Net, place: object, steps: int) -> float:
    """The rate with the lowest mean loss on the last tenth of the training text."""
    seeds = RATE_SEEDS if steps == STEPS else RATE_SEEDS[:1]
    return min(
        RATES,
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


def class_of(characters: str) -> Tensor:
    """The number of each character's class."""
    return torch.tensor(
        [next((i for i, some in enumerate(CLASSES) if c in some), len(CLASSES)) for c in characters]
    )


def bits(these: Tensor, those: Tensor) -> float:
    """Mutual information of two lists of numbers from 0, counted pair by pair."""
    columns = int(those.max()) + 1
    counts = (these * columns + those).bincount(minlength=(int(these.max()) + 1) * columns)
    joint = counts.view(-1, columns).double() / len(these)
    apart = joint.sum(1, keepdim=True) * joint.sum(0)
    return float((joint * (joint / apart).log2()).nansum())


@torch.no_grad()
def experts_of(model: Decoder, inputs: Tensor) -> list[Tensor]:
    """Of each block, the likeliest expert of each token."""
    found: list[Tensor] = []

    def note(layer: Mixture, given: tuple[Tensor], _: Tensor) -> None:
        found.append(layer.router(given[0]).argmax(-1).flatten().cpu())

    hooks = [block.mlp.register_forward_hook(note) for block in model.blocks]
    model(inputs)
    for hook in hooks:
        hook.remove()
    return found


def exchanged(experts: Tensor, among: Tensor, draw: torch.Generator) -> Tensor:
    """The experts, exchanged at random among tokens with the same number in `among`."""
    drawn = torch.randperm(len(experts), generator=draw)
    changed = torch.empty_like(experts)
    changed[among.argsort(stable=True)] = experts[drawn[among[drawn].argsort(stable=True)]]
    return changed


def read_routers(data: Data, seed: int, steps: int) -> list[Row]:
    """What the experts of each block say about the tokens, before and after training."""
    text, net = load_prose(), NETS["mixture"]
    count = (len(text.test) - 1) // CONTEXT * CONTEXT
    letters, kinds = text.test[:count], class_of(text.characters)
    own, following = kinds[letters], kinds[text.test[1 : count + 1]]
    small = torch.tensor([i for i, c in enumerate(text.characters) if c in string.ascii_lowercase])
    rows = []
    for trained in (0, steps):
        draw = torch.Generator().manual_seed(seed)
        train, vocabulary = text.train.to(data.place), len(text.characters)
        model, _ = train_one(net, DEEP_RATE, seed, train, vocabulary, trained, BLOCKS)
        inputs = letters.view(-1, CONTEXT).to(data.place)
        for block, experts in enumerate(experts_of(model, inputs), start=1):
            dealt = []
            for _ in range(DEALS):
                other = kinds.clone()
                other[small] = kinds[small[torch.randperm(len(small), generator=draw)]]
                dealt.append(bits(other[letters], experts))
            anyhow = exchanged(experts, torch.zeros_like(letters), draw)
            alike = exchanged(experts, letters, draw)  # says what the letter says, and no more
            both, chance = (letters * EXPERTS + each for each in (experts, alike))
            row = {
                "seed": seed,
                "steps": trained,
                "block": block,
                "class": bits(own, experts),
                "class_dealt": statistics.mean(dealt),
                "class_shuffled": bits(own, anyhow),
                "next_class": bits(following, both) - bits(following, chance),
            }
            rows.append({name: round(value, 4) for name, value in row.items()})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recordings."""
    studies = {
        "experts_rates.csv": try_rates,
        "experts.csv": compare,
        "experts_letters.csv": read_routers,
    }
    return run_studies(
        studies, (STEPS, DRY), command=COMMAND, about=__doc__, arguments=arguments, seeds=SEEDS
    )


if __name__ == "__main__":
    sys.exit(main())
