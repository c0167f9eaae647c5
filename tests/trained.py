"""The same training by torch's pipeline in processes, by our engine, and uncut."""

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mpcourse.devices import Device, as_devices, get_devices
from mpcourse.multiprocess import Outcome
from mpcourse.multiprocess.pipeline_work import (
    LOSS,
    add_work_options,
    cut,
    make_batches,
    make_net,
    reproducible,
)
from mpcourse.pipeline import Pipeline
from mpcourse.schedules import Action, Event, Schedule, Timeline


def work_options(**options: Any) -> argparse.Namespace:
    """The options of the programs, with their defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    add_work_options(parser)
    values = vars(parser.parse_args([]))
    unknown = set(options) - set(values)
    if unknown:
        raise ValueError(f"options are {', '.join(values)}; got {', '.join(sorted(unknown))}")
    return argparse.Namespace(**{**values, **options})


class Trained(NamedTuple):
    """What a training has come to.

    Attributes:
        losses: Of each step.
        gradients: Of the last step, one list per stage.
        timeline: Measured in the last step, if there was a pipeline.
        seconds: Of each forward and backward of a mini-batch, in the slowest process of torch's.
    """

    losses: list[float]
    gradients: list[list[Tensor]]
    timeline: Timeline | None
    seconds: Sequence[float] = ()


def devices_of_ranks(number: int) -> list[Device]:
    """Devices for our engine such as `number` processes have: a GPU each, or else CPU cores."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return get_devices(number) if gpus >= number else as_devices(["cpu"] * number)


def train_ours(
    options: argparse.Namespace, schedule: str | Schedule, num_stages: int, num_devices: int = 2
) -> Trained:
    """Train with the course's engine, in this process, on such devices as the processes have."""
    stages = cut(make_net(options), num_stages)
    devices, count = devices_of_ranks(num_devices), options.microbatches
    pipeline = Pipeline(stages, devices, schedule=schedule, num_microbatches=count)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=options.learning_rate)
    losses = []
    for images, targets in make_batches(options):
        optimizer.zero_grad()
        with reproducible():
            losses.append(pipeline.step(images, targets, LOSS).item())
        optimizer.step()
    return Trained(losses, gradients_of(stages), pipeline.timeline)


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
    """The same for a run of the program "pipelines", by schedule."""
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
        for label, start, end in result["events"][-1]
    ]
    timeline = Timeline.from_clock(events, len(results))
    return Trained(losses, gradients, timeline, seconds)


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
