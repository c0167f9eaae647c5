"""The small decoder of page `a_transformer`, trained longer: `python data/transformer_study.py`.

Writes two tables. A run of other length has another learning rate at each step, so each budget is
a training of its own.

- `data/transformer.csv`, five seeds: the test loss over the steps of training, with learned
  positions and with positions held at 0.
- `data/transformer_mixtures.csv`, two seeds for the sake of time: the longest training with more
  than half a window in sight and with as few letters as the counts, its probabilities mixed half
  and half with theirs.
"""

import functools
import math
import sys
from collections.abc import Sequence

import torch
from studies import Row, run_studies
from torch import Tensor, nn

from mpcourse.training.in_memory import Data
from mpcourse.transformer import (
    Decoder,
    counted_losses,
    load_prose,
    text_loss,
    train_decoder,
    unsplit_step,
    windows,
)

COMMAND = "python data/transformer_study.py"
CONTEXT = 64
BUDGETS = {"learned": (250, 500, 1000, 2000, 3500), "held at 0": (1000,)}
MIXED_SEEDS = (0, 1)
COUNT = "7-gram"
SIGHT = 6  # letters that a 7-gram knows of the past
DRY = {"learned": (20,), "held at 0": (20,)}


@functools.cache
def train_one(positions: str, steps: int, seed: int, place: object) -> tuple[Decoder, list[float]]:
    """The page's model after so many steps; the loss of each step."""
    text = load_prose()
    torch.manual_seed(seed)
    model = Decoder(len(text.characters), width=64, heads=4, layers=2, context=CONTEXT).to(place)
    if positions == "held at 0":
        torch.nn.init.zeros_(model.embedding.positions.weight).requires_grad_(False)
    losses = train_decoder(
        unsplit_step(model),
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        text.train.to(place),
        steps=steps,
        context=CONTEXT,
        batch_size=16,
        rate=4e-3,
        seed=seed,
    )
    return model.eval(), losses


def train_each_budget(data: Data, seed: int, budgets: dict[str, Sequence[int]]) -> list[Row]:
    """Train the page's model for each number of steps; of `data`, only the place is used."""
    test, rows = load_prose().test.to(data.place), []
    for positions, all_steps in budgets.items():
        for steps in all_steps:
            model, losses = train_one(positions, steps, seed, data.place)
            row = {"positions": positions, "steps": steps, "seed": seed}
            rows.append({**row, **both_losses(model, losses, test)})
    return rows


def both_losses(model: Decoder, losses: list[float], test: Tensor) -> Row:
    """The mean of the last steps, on what is learned from, and the loss on `test`."""
    late = losses[-max(1, len(losses) // 20) :]
    test_loss = text_loss(model, test, CONTEXT)
    return {"train_loss": round(sum(late) / len(late), 4), "test_loss": round(test_loss, 4)}


def mix_with_counts(data: Data, seed: int, budgets: dict[str, Sequence[int]]) -> list[Row]:
    """The test losses of the longest training, alone and with half the say, on the same letters."""
    if seed not in MIXED_SEEDS:
        return []
    text, steps = load_prose(), max(budgets["learned"])
    test = text.test.to(data.place)
    model, _ = train_one("learned", steps, seed, data.place)
    net = character_losses(model, test, CONTEXT, seen=CONTEXT // 2)
    judged = slice(CONTEXT // 2 + 1, CONTEXT // 2 + 1 + len(net))
    short = nearsighted_losses(model, test, SIGHT)[judged.start - SIGHT : judged.stop - SIGHT]
    counts = counted_losses(text)[COUNT][judged]
    row = {
        "net": net.mean(),
        "counts": counts.mean(),
        "net_and_counts": mixed(net, counts),
        "short": short.mean(),
        "short_and_counts": mixed(short, counts),
    }
    rounded = {name: round(loss.item(), 4) for name, loss in row.items()}
    return [{"steps": steps, "seed": seed, **rounded}]


@torch.no_grad()
def character_losses(model: nn.Module, tokens: Tensor, context: int, seen: int) -> Tensor:
    """The loss of each character that has `seen` others before the last one in its window."""
    starts = torch.arange(0, len(tokens) - context, context - seen)
    inputs, targets = windows(tokens, context, starts)
    logits = model(inputs).double()[:, seen:].flatten(0, 1)
    targets = targets[:, seen:].flatten()
    return nn.functional.cross_entropy(logits, targets, reduction="none").cpu()


@torch.no_grad()
def nearsighted_losses(model: nn.Module, tokens: Tensor, sight: int) -> Tensor:
    """The loss of each character after the first `sight`, with as many before it in its window."""
    logits = model(tokens[:-1].unfold(0, sight, 1)).double()[:, -1]
    return nn.functional.cross_entropy(logits, tokens[sight:], reduction="none").cpu()


def mixed(one: Tensor, other: Tensor) -> Tensor:
    """The loss of the mean of two probabilities, whose losses are given for each character."""
    return math.log(2) - torch.logaddexp(-one, -other).mean()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recordings."""
    studies = {
        "transformer.csv": train_each_budget,
        "transformer_mixtures.csv": mix_with_counts,
    }
    return run_studies(studies, (BUDGETS, DRY), command=COMMAND, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
