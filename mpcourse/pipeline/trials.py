"""Predict a schedule, then run it: the same model, one step per schedule (page `schedules`)."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mpcourse.devices.devices import Device
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.named import NAMED, make_schedule
from mpcourse.schedules.simulation import costs_from, simulate
from mpcourse.schedules.timeline import Timeline
from mpcourse.splitting.splits import split_sequential


@dataclass(frozen=True)
class Trial:
    """One schedule, predicted and run.

    Attributes:
        predicted: Simulated, with costs from micro-batches that ran alone.
        measured: Of the middle one of the steps, in seconds.
        loss: Of the mini-batch.
        gradients: One per parameter, on the host.
        activation_size: What a stage counts, in shares of a device's part of the model.
    """

    predicted: Timeline
    measured: Timeline
    loss: Tensor
    gradients: list[Tensor]
    activation_size: float


def try_schedule(
    name: str,
    model: nn.Sequential,
    devices: Sequence[Device],
    batch: tuple[Tensor, Tensor],
    loss_fn: Callable[[Any, Any], Tensor],
    *,
    num_microbatches: int,
    repeats: int = 5,
) -> Trial:
    """Cut a copy of a model for a schedule, predict its timeline, and measure it.

    Args:
        name: One of `mpcourse.schedules.NAMED`.
        model: Layers, cut into stages of as many layers each; it stays as it is.
        devices: Where to.
        batch: Inputs and targets.
        loss_fn: As for `Pipeline.step`.
        num_microbatches: Into how many the batch is cut; at most its number of samples.
        repeats: Steps after the first, which warms up.
    """
    per_device = NAMED[name].stages_per_device
    num_stages = per_device * len(devices)
    stages = split_sequential(copy.deepcopy(model), num_stages, by="count")
    pipeline = Pipeline(stages, devices, name, num_microbatches=num_microbatches)
    first = [tensor.tensor_split(num_microbatches)[0] for tensor in batch]
    alone = Pipeline(stages, devices, name, num_microbatches=1)  # so nothing overlaps
    costs = costs_from(_middle(alone, first, loss_fn, repeats))
    schedule = make_schedule(name, num_stages, len(devices), num_microbatches)
    measured = _middle(pipeline, batch, loss_fn, repeats)
    pipeline.zero_grad()
    loss = pipeline.step(*batch, loss_fn).cpu()
    gradients = [parameter.grad.cpu() for parameter in pipeline.parameters()]
    return Trial(simulate(schedule, costs), measured, loss, gradients, 1 / per_device)


def _middle(
    pipeline: Pipeline, batch: Sequence[Tensor], loss_fn: Callable, repeats: int
) -> Timeline:
    """The timeline of the middle one of the steps, by makespan."""
    pipeline.step(*batch, loss_fn)
    runs = []
    for _ in range(repeats):
        pipeline.step(*batch, loss_fn)
        runs.append(pipeline.timeline)
    return sorted(runs, key=lambda run: run.makespan)[repeats // 2]
