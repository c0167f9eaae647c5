"""The small decoder of page `a_transformer`, trained longer: `python data/transformer_study.py`.

Writes five tables. A run of other length has another learning rate at each step, so each budget is
a training of its own.

- `data/transformer.csv`, five seeds: the test loss over the steps of training, with learned
  positions and with positions held at 0.
- `data/transformer_mixtures.csv`, two seeds for the sake of time: the longest training with more
  than half a window in sight and with as few letters as the counts, its probabilities mixed half
  and half with theirs.
- `data/transformer_less_text.csv`, two seeds: half and a quarter of the text to learn from, as
  many times over as the two longest trainings, for as many steps, and for some lengths between;
  and counts of as much.
- `data/transformer_dropout.csv`, one seed: all of the text, twice as many steps as the longest
  training, with dropout; and counts of as much.
- `data/transformer_one_block.csv`, two seeds: one block, with positions held at 0.
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
    Text,
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
MIXED_SEEDS = (0, 1)  # those that learn from less, too
PARTS = (2, 4)  # a half, a quarter
BETWEEN = (1250, 1500)  # steps, also on less text: the best length is not the same share of it
COUNT = "7-gram"
DROPOUT = 0.1
SIGHT = 6  # letters that a 7-gram knows of the past
DRY = {"learned": (20,), "held at 0": (20,)}


def last_part(parts: int) -> Text:
    """The prose with the last of so many equal parts to learn from, and the same test."""
    text = load_prose()
    return Text(text.characters, text.train[-(len(text.train) // parts) :], text.test)


@functools.cache
def train_one(
    positions: str,
    steps: int,
    seed: int,
    place: object,
    parts: int = 1,
    dropout: float = 0.0,
    layers: int = 2,
) -> tuple[Decoder, list[float]]:
    """The page's model after so many steps on the last of so many parts; the loss of each step."""
    text = last_part(parts)
    torch.manual_seed(seed)
    sizes = {"width": 64, "heads": 4, "layers": layers, "context": CONTEXT, "dropout": dropout}
    model = Decoder(len(text.characters), **sizes).to(place)
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


def train_on_less(data: Data, seed: int, budgets: dict[str, Sequence[int]]) -> list[Row]:
    """The test losses of the model and of counts that learn from less."""
    if seed not in MIXED_SEEDS:
        return []
    rows = []
    for parts in PARTS:
        text = last_part(parts)
        counts = round(counted_losses(text)[COUNT].mean().item(), 4)
        long = budgets["learned"][-2:]
        between = [each for each in BETWEEN if each < long[0]]
        for steps in sorted({*(each // parts for each in long), *between, long[0]}):
            model, losses = train_one("learned", steps, seed, data.place, parts)
            found = both_losses(model, losses, text.test.to(data.place))
            row = {"parts": parts, "steps": steps, "seed": seed}
            rows.append({**row, **found, "counts": counts})
    return rows


def train_with_dropout(data: Data, seed: int, budgets: dict[str, Sequence[int]]) -> list[Row]:
    """The losses of the model after twice the longest training, with dropout; and of counts."""
    if seed != MIXED_SEEDS[0]:
        return []
    text, steps = load_prose(), 2 * max(budgets["learned"])
    model, losses = train_one("learned", steps, seed, data.place, dropout=DROPOUT)
    found = both_losses(model, losses, text.test.to(data.place))
    counts = round(counted_losses(text)[COUNT].mean().item(), 4)
    return [{"dropout": DROPOUT, "steps": steps, "seed": seed, **found, "counts": counts}]


def train_one_block(data: Data, seed: int, budgets: dict[str, Sequence[int]]) -> list[Row]:
    """The losses of a model of one block with positions held at 0."""
    if seed not in MIXED_SEEDS:
        return []
    rows = []
    for steps in budgets["held at 0"]:
        model, losses = train_one("held at 0", steps, seed, data.place, layers=1)
        found = both_losses(model, losses, load_prose().test.to(data.place))
        rows.append({"layers": 1, "steps": steps, "seed": seed, **found})
    return rows


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
        "transformer_less_text.csv": train_on_less,
        "transformer_dropout.csv": train_with_dropout,
        "transformer_one_block.csv": train_one_block,
    }
    return run_studies(studies, (BUDGETS, DRY), command=COMMAND, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
