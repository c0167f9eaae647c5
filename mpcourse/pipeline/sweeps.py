"""Time a pipeline's stages alone, then its step at every split size (page `pipeline`).

`prediction` makes step times of the first; the second shows how far they are off.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.devices.devices import DeviceLike, as_devices
from mpcourse.devices.timing import Timing, measure, measure_together
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.prediction import Line, StageLines, fit_line, timed_sizes
from mpcourse.schedules.simulation import costs_from
from mpcourse.schedules.timeline import Event, Timeline
from mpcourse.splitting.resnet import thin_resnet50


@dataclass(frozen=True)
class Sweep:
    """Measured step times by split size.

    Attributes:
        pipeline: Split size -> time of the pipeline's step.
        alone: Split size -> time of one device with the same micro-batches.
    """

    pipeline: Mapping[int, Timing]
    alone: Mapping[int, Timing]

    def seconds(self, which: str) -> dict[int, float]:
        """The medians of "pipeline" or "alone", by split size."""
        return {size: timing.median_s for size, timing in getattr(self, which).items()}


@dataclass(frozen=True)
class Work:
    """What is swept: a model in two stages, one mini-batch, and the split sizes.

    Attributes:
        stages: ResNet50, on a CPU half as wide, cut behind layer2 as in PyTorch's tutorial.
        images: The mini-batch, on the first device.
        labels: Its classes, there too.
        sizes: Split sizes; each divides the mini-batch.
    """

    stages: list[nn.Sequential]
    images: Tensor
    labels: Tensor
    sizes: list[int]


def split_work(devices: Sequence[DeviceLike]) -> Work:
    """Work on which a pipeline pays, sized for the kind of device: a step takes under a second.

    The sizes begin at 2 on a CPU: for a single sample torch chooses other kernels throughout, and
    no line goes through both. On GPUs it is ResNet50 and 120 images, as in PyTorch's tutorial.

    Args:
        devices: Two of them.
    """
    place = as_devices(devices)[0].device
    on_cpu = place.type == "cpu"
    width, image, unit = (32, 96, 2) if on_cpu else (64, 128, 10)
    blocks = thin_resnet50(width, num_classes=10).to(memory_format=torch.channels_last)
    cut = [name.startswith("layer3") for name, _ in blocks.named_children()].index(True)
    images = torch.randn(12 * unit, 3, image, image, device=place)
    labels = torch.randint(10, (len(images),), device=place)
    sizes = [size * unit for size in (1, 2, 3, 4, 6, 12)]
    images = images.to(memory_format=torch.channels_last)
    return Work([blocks[:cut], blocks[cut:]], images, labels, sizes)


def measure_stages(
    work: Work,
    devices: Sequence[DeviceLike],
    loss_fn: Callable[[Any, Any], Tensor],
    *,
    repeats: int = 3,
) -> StageLines:
    """Time each stage alone, one micro-batch at a time, at `timed_sizes`, and fit the lines.

    In the naive schedule a stage works while the other device idles, so its times are its own.

    Args:
        work: What is swept; its stages' gradients are added to.
        devices: One per stage.
        loss_fn: The loss, a part of the last stage.
        repeats: How often each size is timed after one run to warm up; medians count.
    """
    sizes = timed_sizes(work.sizes)
    events: dict[int, list[Event]] = {size: [] for size in sizes}
    naive = {n: Pipeline(work.stages, devices, "naive", microbatch_size=n) for n in sizes}
    for run in range(1 + repeats):
        for size, pipeline in naive.items():
            pipeline.step(work.images[:size], work.labels[:size], loss_fn)
            events[size] += pipeline.timeline.events if run else ()
    costs = [costs_from(Timeline(tuple(events[size]), len(work.stages))) for size in sizes]

    def lines(direction: str) -> tuple[Line, ...]:
        columns = zip(*(getattr(cost, direction) for cost in costs), strict=True)
        return tuple(fit_line(sizes, times) for times in columns)

    return StageLines(lines("forward"), lines("backward"))


def measure_step(
    work: Work,
    devices: Sequence[DeviceLike],
    loss_fn: Callable[[Any, Any], Tensor],
    split_size: int,
    schedule: str = "1f1b",
    *,
    repeats: int = 3,
) -> Timing:
    """Measure the pipeline's step at one split size.

    Args:
        work: What is run; its stages' gradients are added to.
        devices: One per stage.
        loss_fn: The loss.
        split_size: Samples of a micro-batch, 1 or more.
        schedule: Of the pipeline.
        repeats: How often the step is timed, after one to warm up.
    """
    pipeline = Pipeline(work.stages, devices, schedule, microbatch_size=split_size)
    step = _stepper(pipeline, work, loss_fn)
    return measure(step, devices, warmup=1, repeats=repeats)


def measure_sweep(
    work: Work,
    devices: Sequence[DeviceLike],
    loss_fn: Callable[[Any, Any], Tensor],
    schedule: str = "1f1b",
    *,
    repeats: int = 3,
) -> Sweep:
    """Measure the step at every split size, pipelined and on one device, all in turns.

    Both run in workers. Two micro-batches of each size warm up.

    Args:
        work: What is swept; its stages' gradients are added to.
        devices: One per stage.
        loss_fn: The loss.
        schedule: Of the pipeline.
        repeats: How often each step is timed.
    """
    one = [nn.Sequential(*work.stages)]
    runs = {}
    for size in work.sizes:
        runs["pipeline", size] = Pipeline(work.stages, devices, schedule, microbatch_size=size)
        runs["alone", size] = Pipeline(one, devices[:1], "naive", microbatch_size=size)
    for (_, size), pipeline in runs.items():
        pipeline.step(work.images[: 2 * size], work.labels[: 2 * size], loss_fn)
    steps = {key: _stepper(pipeline, work, loss_fn) for key, pipeline in runs.items()}
    times = measure_together(steps, devices, warmup=0, repeats=repeats)
    columns = ({n: times[which, n] for n in work.sizes} for which in ("pipeline", "alone"))
    return Sweep(*columns)


def measure_unsplit(
    work: Work, loss_fn: Callable[[Any, Any], Tensor], *, repeats: int = 3
) -> Timing:
    """Measure the step of the model in one piece, called as usual: on a CPU, with all cores.

    Args:
        work: What is run; all stages on one device. Their gradients are added to.
        loss_fn: The loss.
        repeats: How often the step is timed, after one to warm up.
    """
    whole = nn.Sequential(*work.stages)

    def step() -> None:
        loss_fn(whole(work.images), work.labels).backward()

    return measure(step, warmup=1, repeats=repeats)


def _stepper(
    pipeline: Pipeline, work: Work, loss_fn: Callable[[Any, Any], Tensor]
) -> Callable[[], Tensor]:
    return lambda: pipeline.step(work.images, work.labels, loss_fn)
