"""The work that torch's pipeline, ours and the uncut net are given alike.

Page `torch_pipelining`.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models import resnet50

from mpcourse.devices.devices import Device, as_devices, get_devices, synchronize
from mpcourse.multiprocess.launch import Outcome
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.actions import Action, Schedule
from mpcourse.schedules.timeline import Event, Timeline
from mpcourse.splitting.resnet import resnet_blocks, thin_resnet50
from mpcourse.splitting.splits import balanced_bounds
from mpcourse.training.mnist import load_mnist
from mpcourse.training.nets import conv_net, mnist_net

MODELS = {
    "mnist": mnist_net,
    "conv": conv_net,
    "resnet50": lambda: resnet_blocks(resnet50(num_classes=10)),
    "thin-resnet50": lambda: thin_resnet50(num_classes=10),
}
LOSS = nn.CrossEntropyLoss()


def add_work_options(parser: argparse.ArgumentParser) -> None:
    """What is trained, and on how much."""
    parser.add_argument("--model", choices=list(MODELS), default="mnist")
    parser.add_argument("--image-size", type=int, default=64, help="pixels, for the ResNets")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--double", action="store_true", help="compute in float64")


def work_options(**options: Any) -> argparse.Namespace:
    """The same options for use on a page, with the programs' defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    add_work_options(parser)
    values = vars(parser.parse_args([]))
    unknown = set(options) - set(values)
    if unknown:
        raise ValueError(f"options are {', '.join(values)}; got {', '.join(sorted(unknown))}")
    return argparse.Namespace(**{**values, **options})


def make_net(options: argparse.Namespace) -> nn.Sequential:
    """The net, the same in every process; the generator of the caller is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        net = MODELS[options.model]()
        return net.double() if options.double else net


def cut(net: nn.Sequential, num_stages: int) -> list[nn.Sequential]:
    """Stages of about as many layers (or blocks of a ResNet) each; the first has parameters.

    torch's split backward loses the weights' gradients of a stage whose input needs none, as that
    behind a first stage without parameters does, and says nothing.
    """
    first = next(i for i, layer in enumerate(net) if list(layer.parameters()))
    bounds = [first + bound for bound in balanced_bounds([1.0] * len(net[first:]), num_stages)]
    return [net[start:end] for start, end in pairwise([0, *bounds[1:]])]


def make_batches(options: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    """One mini-batch per step: MNIST for the nets of MNIST, random images for a ResNet."""
    number = options.batch_size * options.steps
    generator = torch.Generator().manual_seed(options.seed)
    if "resnet" in options.model:
        size = options.image_size
        images = torch.randn(number, 3, size, size, generator=generator)
        targets = torch.randint(10, (number,), generator=generator)
    else:
        train, _ = load_mnist()
        order = torch.randperm(len(train), generator=generator)[:number].tolist()
        images = torch.stack([train[index][0] for index in order])
        targets = torch.tensor([train[index][1] for index in order])
    images = images.double() if options.double else images
    pairs = zip(images.split(options.batch_size), targets.split(options.batch_size), strict=True)
    return list(pairs)


class Trained(NamedTuple):
    """What a training has come to.

    Attributes:
        losses: Of each step.
        gradients: Of the last step, one list per stage.
        timeline: Measured in the step that is counted, if there was a pipeline.
        seconds: Of each forward and backward of a mini-batch, in the slowest process.
    """

    losses: list[float]
    gradients: list[list[Tensor]]
    timeline: Timeline | None
    seconds: Sequence[float] = ()

    @property
    def action_s(self) -> float:
        """The time of the step that is counted over a device's most actions."""
        actions = max(map(len, order_of(self.timeline)))
        return self.seconds[counted(self.seconds)] / actions


def devices_of_ranks(number: int) -> list[Device]:
    """Devices for our engine such as `number` processes have: a GPU each, or else CPU cores."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return get_devices(number) if gpus >= number else as_devices(["cpu"] * number)


def reproducible() -> AbstractContextManager:
    """Inside, two engines that do the same actions in the same order compute the same on GPUs."""
    return torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=False)


def train_ours(
    options: argparse.Namespace, schedule: str | Schedule, num_stages: int, num_devices: int = 2
) -> Trained:
    """Train with the course's engine, in this process, on such devices as the processes have."""
    stages = cut(make_net(options), num_stages)
    devices, count = devices_of_ranks(num_devices), options.microbatches
    pipeline = Pipeline(stages, devices, schedule=schedule, num_microbatches=count)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=options.learning_rate)
    losses, seconds, timelines = [], [], []
    for images, targets in make_batches(options):
        optimizer.zero_grad()
        synchronize(devices)  # the last step of the optimizer is not to be timed
        start = time.perf_counter()
        with reproducible():
            losses.append(pipeline.step(images, targets, LOSS).item())
        seconds.append(time.perf_counter() - start)
        optimizer.step()
        timelines.append(pipeline.timeline)
    return Trained(losses, gradients_of(stages), timelines[counted(seconds)], seconds)


def train_uncut(options: argparse.Namespace, num_stages: int = 1) -> Trained:
    """Train the uncut net on whole mini-batches, in this process."""
    net = make_net(options)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.learning_rate)
    losses = []
    for images, targets in make_batches(options):
        optimizer.zero_grad()
        loss = LOSS(net(images), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, gradients_of(cut(net, num_stages)), None)


def gradients_of(stages: Sequence[nn.Module]) -> list[list[Tensor]]:
    """The gradients of each stage, on the CPU."""
    return [[parameter.grad.cpu() for parameter in stage.parameters()] for stage in stages]


def trained_by_torch(outcome: Outcome) -> Trained:
    """What a run of the program "pipeline" has come to, put together from its ranks."""
    return _put_together(outcome.results)


def each_trained_by_torch(outcome: Outcome, program: str | None = None) -> dict[str, Trained]:
    """The same for a run of the program "pipelines", by schedule.

    Args:
        outcome: Of that program, or of "several".
        program: How it was named to "several".
    """
    results = [rank[program] if program else rank for rank in outcome.results]
    return {name: _put_together([rank[name] for rank in results]) for name in results[0]}


def _put_together(results: Sequence[dict[str, Any]]) -> Trained:
    losses = next(result["losses"] for result in results if result["losses"])
    stages = {index: row for r in results for index, row in r["gradients"].items()}
    gradients = [stages[index] for index in sorted(stages)]
    seconds = [max(times) for times in zip(*(r["seconds"] for r in results), strict=True)]
    events = [
        Event(rank, _action(label), start, end)
        for rank, result in enumerate(results)
        for label, start, end in result["events"][counted(seconds)]
    ]
    timeline = Timeline.from_clock(events, len(results))
    return Trained(losses, gradients, timeline, seconds)


def counted(seconds: Sequence[float]) -> int:
    """Which step counts, from 0: the median one of all but the first, which warms up.

    Of an even number the faster of the two in the middle; of one step that one.
    """
    warm = range(min(1, len(seconds) - 1), len(seconds))
    return sorted(warm, key=lambda step: seconds[step])[(len(warm) - 1) // 2]


def order_of(timeline: Timeline) -> Schedule:
    """What each device did, in order: a schedule again."""
    rows: Schedule = [[] for _ in range(timeline.num_devices)]
    for event in timeline.events:
        rows[event.device_index].append(event.action)
    return rows


def largest_difference(first: Trained, second: Trained) -> float:
    """The largest difference between two trainings' losses and gradients."""
    pairs = [
        (a, b)
        for mine, theirs in zip(first.gradients, second.gradients, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    ]
    gradients = max((a - b).abs().max().item() for a, b in pairs)
    losses = max(abs(a - b) for a, b in zip(first.losses, second.losses, strict=True))
    return max(gradients, losses)


def _action(label: str) -> Action:
    kind = next(letter for letter in label if letter.isalpha())
    stage, microbatch = label.split(kind)
    return Action(int(stage), kind, int(microbatch))
