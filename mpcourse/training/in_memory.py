"""Train and judge on images that are held in memory, for pages that train many small nets."""

import copy
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
        self._use(train, test, batch_size)

    def _use(self, train: list[torch.Tensor], test: list[torch.Tensor], batch_size: int) -> None:
        self.shuffled = DataLoader(TensorDataset(*train), batch_size, shuffle=True)
        self.test = [test]
        self.all_train = train

    def for_choices(self) -> "Data":
        """The training images alone, the last fifth of them for judging: to choose settings by."""
        chosen, first = copy.copy(self), len(self.all_train[0]) * 4 // 5
        parts = [part[:first] for part in self.all_train], [part[first:] for part in self.all_train]
        chosen._use(*parts, self.shuffled.batch_size)
        return chosen

    def accuracy(self, model: nn.Module) -> float:
        """On the 1,000 test images, or on those held back for choices."""
        return evaluate(model, self.test, LOSS).accuracy


def train(
    model: nn.Module, data: Data, epochs: int, rate: float, hooks: Iterable[Callable] = ()
) -> None:
    """Train with momentum and weight decay, and with a falling rate.

    The learning rate falls from `rate` to 0 along a cosine. The hooks are called after each step of
    the optimizer, with the optimizer; before it, one that says so by an attribute `before_step`.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    for hook in hooks:
        before = getattr(hook, "before_step", False)
        register = optimizer.register_step_pre_hook if before else optimizer.register_step_post_hook
        register(hook)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        train_epoch(model, data.shuffled, optimizer, LOSS)
        schedule.step()
