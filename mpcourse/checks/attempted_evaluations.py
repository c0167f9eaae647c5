"""Ways to evaluate over ragged batches: the right one, and those that people really use.

Page `train_mnist`.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mpcourse.checks.placed import place_on

LAST_STAGE = torch.device("cuda", 1)
LOSS = nn.CrossEntropyLoss()

Batches = list[tuple[Tensor, Tensor]]


class Model(nn.Module):
    """A net with batch norm whose outputs lie on a device that pretends to be another."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.gradients_were_on = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Take rows (N, 3), wherever they are, to outputs (N, 3) on the last stage's device."""
        self.gradients_were_on |= torch.is_grad_enabled()
        with torch._C.DisableTorchFunctionSubclass():  # any input will do, as for a Pipeline
            outputs = self.net(inputs.detach().as_subclass(Tensor))
        return place_on(outputs, LAST_STAGE)


def batches_of(sizes: Sequence[int]) -> Batches:
    """Rows (N, 3) and classes from 0 to 2, the same at each call."""
    generator = torch.Generator().manual_seed(sum(sizes))
    return [
        (
            2 + torch.randn(size, 3, generator=generator),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in sizes
    ]


def totals(batches: Batches, *, training: bool) -> dict[str, tuple[float, float]]:
    """(loss, accuracy) of the batches, added up in the ways that people really use."""
    net = copy.deepcopy(Model().net).train(training)
    sizes, losses, rights, firsts = [], [], [], []
    with torch.no_grad():
        for inputs, targets in batches:
            outputs = net(inputs)
            sizes.append(len(inputs))
            losses.append(LOSS(outputs, targets).item())
            rights.append((outputs.argmax(1) == targets).sum().item())
            firsts.append((outputs.argmax() == targets).sum().item())
    samples, number = sum(sizes), len(sizes)
    weighted = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / samples
    by_batch = sum(right / size for right, size in zip(rights, sizes, strict=True)) / number
    accuracy = sum(rights) / samples
    return {
        "right": (weighted, accuracy),
        "loss by batches": (sum(losses) / number, accuracy),
        "both by batches": (sum(losses) / number, by_batch),
        "accuracy by batches": (weighted, by_batch),
        "losses summed": (sum(losses), accuracy),
        "means over samples": (sum(losses) / samples, accuracy),
        "loss not divided": (weighted * samples, accuracy),
        "count": (weighted, sum(rights)),
        "percent": (weighted, 100 * accuracy),
        "one answer for all": (weighted, sum(firsts) / samples),
    }


MEANT = {
    "loss by batches": "The last batch is smaller, but counts as much: weight by samples.",
    "both by batches": "The last batch is smaller, but counts as much: weight by samples.",
    "accuracy by batches": "The last batch is smaller: count right answers, then divide once.",
    "losses summed": "The losses are added up and never divided.",
    "means over samples": "Each batch's loss is a mean: multiply by its samples before adding up.",
    "loss not divided": "The loss of all samples is added up, but not divided by their number.",
    "count": "That is the number of right answers; the share is asked for.",
    "percent": "Accuracy is a share from 0 to 1 here, no percentage.",
    "one answer for all": "argmax() alone looks through the whole batch: argmax(dim=1) per row.",
}


def known_totals(batches: Batches) -> list[tuple[tuple[float, float], str]]:
    """Wrong results that people really give, each with what it shows."""
    evaluating, training = (totals(batches, training=mode) for mode in (False, True))
    known = [(evaluating[name], message) for name, message in MEANT.items()]
    forgot = "That is the model in training mode: call model.eval() before the loop."
    return known + [(wrong, forgot) for wrong in training.values()]
