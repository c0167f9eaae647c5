"""The small decoder of page `a_transformer`, trained longer: `python data/transformer_study.py`.

Writes `data/transformer.csv`: the test loss over the steps of training, five seeds, with learned
positions and with positions held at 0. A run of other length has another learning rate at each
step, so each budget is a training of its own.
"""

import sys
from collections.abc import Sequence

import torch
from studies import Row, run_studies

from mpcourse.training.in_memory import Data
from mpcourse.transformer import Decoder, load_prose, text_loss, train_decoder, unsplit_step

COMMAND = "python data/transformer_study.py"
CONTEXT = 64
BUDGETS = {"learned": (250, 500, 1000, 2000, 3500), "held at 0": (1000,)}
DRY = {"learned": (20,), "held at 0": (20,)}


def train_each_budget(data: Data, seed: int, budgets: dict[str, Sequence[int]]) -> list[Row]:
    """Train the page's model for each number of steps; of `data`, only the place is used."""
    text, rows = load_prose(), []
    train, test = text.train.to(data.place), text.test.to(data.place)
    for positions, all_steps in budgets.items():
        for steps in all_steps:
            torch.manual_seed(seed)
            model = Decoder(len(text.characters), 64, 4, layers=2, context=CONTEXT).to(data.place)
            if positions == "held at 0":
                torch.nn.init.zeros_(model.embedding.positions.weight).requires_grad_(False)
            losses = train_decoder(
                unsplit_step(model),
                [parameter for parameter in model.parameters() if parameter.requires_grad],
                train,
                steps=steps,
                context=CONTEXT,
                batch_size=16,
                rate=4e-3,
                seed=seed,
            )
            late = losses[-max(1, steps // 20) :]
            row = {"positions": positions, "steps": steps, "seed": seed}
            row["train_loss"] = round(sum(late) / len(late), 4)
            rows.append({**row, "test_loss": round(text_loss(model, test, CONTEXT), 4)})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, print each row, write the recording."""
    studies = {"transformer.csv": train_each_budget}
    return run_studies(studies, (BUDGETS, DRY), command=COMMAND, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
