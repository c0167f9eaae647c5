"""What the recorded studies of pages 11 to 13 share: images, training, seeds, command line."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpcourse.devices import describe_devices, get_devices
from mpcourse.mnist import load_mnist
from mpcourse.pruning import Movement
from mpcourse.recordings import write_recording
from mpcourse.training import evaluate, train_epoch

SEEDS = range(5)
RATE, TUNING_RATE = 0.05, 0.01
LOSS = nn.CrossEntropyLoss()

Row = dict[str, Any]


class Data:
    """The images as tensors in memory: a study goes through them some thousand times.

    Args:
        place: Where they, and the models, are.
        batch_size: Images in a mini-batch of `shuffled`.
    """

    def __init__(self, place: torch.device, batch_size: int = 64) -> None:
        train, test = (
            [tensor.to(place) for tensor in next(iter(DataLoader(part, len(part))))]
            for part in load_mnist()
        )
        self.place = place
        self.shuffled = DataLoader(TensorDataset(*train), batch_size, shuffle=True)
        self.test = [test]
        self.all_train = train

    def accuracy(self, model: nn.Module) -> float:
        """On the 1,000 test images."""
        return evaluate(model, self.test, LOSS).accuracy


def train(
    model: nn.Module, data: Data, epochs: int, rate: float, hooks: Iterable[Callable] = ()
) -> None:
    """Train with momentum and weight decay, and with a falling rate.

    Args:
        model: Masked or not.
        data: The images.
        epochs: How often all training images are shown.
        rate: The first learning rate; it falls to 0 along a cosine.
        hooks: Called after each step of the optimizer, with the optimizer; a `Movement` before it.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    for hook in hooks:
        before = isinstance(hook, Movement)
        register = optimizer.register_step_pre_hook if before else optimizer.register_step_post_hook
        register(hook)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        train_epoch(model, data.shuffled, optimizer, LOSS)
        schedule.step()


def run_studies(
    studies: Mapping[str, Callable[[Data, int, Any], list[Row]]],
    budgets: tuple[Any, Any],
    *,
    command: str,
    about: str,
    arguments: Sequence[str] | None,
) -> int:
    """The command line of a study: run all seeds, print each row, write the recordings.

    Args:
        studies: Name of the recording -> makes the rows of one seed.
        budgets: What the study is called with: the whole one, and the one of `--dry`.
        command: What is typed to make the recordings again.
        about: What `--help` says.
        arguments: Of the command line.
    """
    options = _options(studies, command, about, arguments)
    dry = options.dry
    [device] = get_devices(1)
    data = Data(device.device)
    for name in [options.only] if options.only else studies:
        rows: list[Row] = []
        for seed in SEEDS[:1] if dry else SEEDS:
            # in its worker, which has one thread: more only wait for one another in a net so small
            found = device.run(studies[name], data, seed, budgets[dry])
            print(*found, sep="\n", flush=True)
            rows += found
        if not dry:
            print(write_recording(name, rows, command=command, device=describe_devices([device])))
    return 0


def _options(
    studies: Iterable[str], command: str, about: str, arguments: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=command, description=about)
    little = "one seed, little training; writes nothing"
    parser.add_argument("--dry", action="store_true", help=little)
    parser.add_argument("--only", choices=list(studies), help="make this recording alone")
    return parser.parse_args(arguments)
