"""Train and judge on images that are held in memory, for pages that train many small nets."""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpcourse.training.loop import evaluate, train_epoch
from mpcourse.training.mnist import load_mnist

RATE, TUNING_RATE = 0.05, 0.01
LOSS = nn.CrossEntropyLoss()


class Data:
    """The images as tensors in memory: a study goes through them some thousand times.

    `place` is where they, and the models, are; `shuffled` has mini-batches of `batch_size`.
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

    The learning rate falls from `rate` to 0 along a cosine. The hooks are called after each step of
    the optimizer, with the optimizer.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    for hook in hooks:
        optimizer.register_step_post_hook(hook)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        train_epoch(model, data.shuffled, optimizer, LOSS)
        schedule.step()
