"""The small decoder of page `a_transformer`, trained longer: `python data/transformer_study.py`.

Writes two tables. A run of other length has another learning rate at each step, so each budget is a
training of its own.

- `data/transformer.csv`, five seeds: the test loss over the steps of training, with learned
  positions and with positions held at 0.
- `data/transformer_mixtures.csv`, three seeds for the sake of time: the longest training, its
  probabilities mixed half and half with those of counted letters, and, as a control, with those of
  another seed's training.
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
OTHER_SEED = {0: 1, 1: 2, 2: 0}  # whose net is the partner in the control
DRY = {"learned": (20,), "held at 0": (20,)}


@functools.cache
def train_one(positions: str, steps: int, seed: int, place: object) -> tuple[Decoder, list[float]]:
    """The page's model after so many steps, and the loss of each."""
    text = load_prose()
    torch.manual_seed(seed)
    model = Decoder(len(text.characters), 64, 4, layers=2, context=CONTEXT).to(place)
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
    return model, losses


def train_each_budget(data: Data, seed: int, budgets: dict[str, Sequence[int]]) -> list[Row]:
    """Train the page's model for each number of steps; of `data`, only the place is used."""
    test, rows = load_prose().test.to(data.place), []
    for positions, all_steps in budgets.items():
        for steps in all_steps:
            model, losses = train_one(positions, steps, seed, data.place)
            late = losses[-max(1, steps // 20) :]
            row = {"positions": positions, "steps": steps, "seed": seed}
            row["train_loss"] = round(sum(late) / len(late), 4)
            rows.append({**row, "test_loss": round(text_loss(model, test, CONTEXT), 4)})
    return rows


def mix_with_counts(data: Data, seed: int, budgets: dict[str, Sequence[int]]) -> list[Row]:
    """The test losses of the longest training, alone and with half the say."""
    if seed not in OTHER_SEED:
        return []
    text, steps = load_prose(), max(budgets["learned"])
    test = text.test.to(data.place)
    net, other = (
        character_losses(train_one("learned", steps, each, data.place)[0], test).flatten()
        for each in (seed, OTHER_SEED[seed])
    )
    counts = counted_losses(text)["6-gram"][1 : len(net) + 1]
    model, _ = train_one("learned", steps, seed, data.place)
    row = {
        "net": net.mean(),
        "net_half_a_window_seen": character_losses(model, test, seen=CONTEXT // 2).mean(),
        "counts": counts.mean(),
        "net_and_counts": mixed(net, counts),
        "two_nets": mixed(net, other),
    }
    rounded = {name: round(loss.item(), 4) for name, loss in row.items()}
    return [{"steps": steps, "seed": seed, **rounded}]


@torch.no_grad()
def character_losses(model: nn.Module, tokens: Tensor, seen: int = 0) -> Tensor:
    """The loss of each character, a row for each window, without the first `seen` of it."""
    starts = torch.arange(0, len(tokens) - CONTEXT, CONTEXT - seen)
    inputs, targets = windows(tokens, CONTEXT, starts)
    logits = model(inputs).double().flatten(0, 1)
    losses = nn.functional.cross_entropy(logits, targets.flatten(), reduction="none")
    return losses.unflatten(0, targets.shape)[:, seen:].cpu()


def mixed(one: Tensor, other: Tensor) -> Tensor:
    """The loss of the mean of two probabilities, whose losses are given for each character."""
    return math.log(2) - torch.logaddexp(-one, -other).mean()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recordings."""
    studies = {"transformer.csv": train_each_budget, "transformer_mixtures.csv": mix_with_counts}
    return run_studies(studies, (BUDGETS, DRY), command=COMMAND, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
