"""Predict a pipeline's step, then measure it, for every split size.

Page `pipeline`.

The prediction stands before anything is swept. Each stage is timed alone, forward
and backward, at three sizes of micro-batch: the smallest, the middle and the largest of the sweep.
Through the three times of each stage and direction goes a line, `fixed + per_sample * size`, and
the simulator turns lines into step times, for sizes that nobody timed too.

Why a line: joining the three times by straight pieces predicts no better here, and a line says how
much a micro-batch costs whatever its size. What it cannot know are kernels that change with the
size (on one thread torch takes another, slower one for 1x1 convolutions below 16 samples: begin a
sweep there), and caches. Two stages at work share one memory; by how
much this slows them is measured too, and stretches the moments at which both work.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.devices.devices import DeviceLike, as_devices
from mpcourse.devices.timing import limited
from mpcourse.pipeline.microbatch import microbatch_sizes
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.named import make_schedule
from mpcourse.schedules.simulation import Costs, costs_from, simulate
from mpcourse.schedules.timeline import Event, Timeline

Loss = Callable[[Any, Any], Tensor]
REPEATS = 3  # how often a step is timed, after one to warm up


@dataclass(frozen=True)
class Line:
    """What one action takes, by the size of its micro-batch, in seconds."""

    fixed_s: float  # whatever the size
    per_sample_s: float

    def at(self, size: int) -> float:
        """Seconds for a micro-batch of `size` samples."""
        return self.fixed_s + self.per_sample_s * size


@dataclass(frozen=True)
class StageLines:
    """What the stages of a pipeline take, a line for each stage and direction."""

    forward: tuple[Line, ...]
    backward: tuple[Line, ...]
    at_once: float = 1.0  # how many times as long an action takes while another device works

    def costs(self, size: int) -> Costs:
        """The costs of a micro-batch of `size` samples, in seconds."""
        rows = (self.forward, self.backward)
        return Costs(*([line.at(size) for line in lines] for lines in rows))

    @property
    def fixed_s(self) -> float:
        """Seconds that a micro-batch costs besides its samples, over all stages."""
        return sum(line.fixed_s for line in self.forward + self.backward)


def timed_sizes(sizes: Sequence[int]) -> tuple[int, int, int]:
    """The three sizes at which the stages are timed: smallest, middle, largest of the sweep's."""
    ordered = sorted(set(sizes))
    if len(ordered) < 3 or ordered[0] < 1:
        raise ValueError(f"three or more different sizes from 1 are needed; got {list(sizes)}")
    return ordered[0], ordered[len(ordered) // 2], ordered[-1]


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> Line:
    """The line with the least squares of *relative* errors, so that short times count as much.

    Its two numbers are 0 or more. There are two or more different sizes, and a time for each.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(seconds) <= 0:
        raise ValueError(
            f"a line needs a time above 0 for each of two or more different sizes; got sizes "
            f"{list(sizes)} and seconds {list(seconds)}"
        )
    weights = [1 / second**2 for second in seconds]
    x = _mean(sizes, weights)
    y = _mean(seconds, weights)
    covariance = _mean([(n - x) * (s - y) for n, s in zip(sizes, seconds, strict=True)], weights)
    slope = max(0.0, covariance / _mean([(n - x) ** 2 for n in sizes], weights))
    if y - slope * x >= 0:
        return Line(y - slope * x, slope)
    # nothing costs less than nothing: the best line through the origin
    return Line(
        0.0,
        _mean([n * s for n, s in zip(sizes, seconds, strict=True)], weights)
        / _mean([n * n for n in sizes], weights),
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def predict_step(lines: StageLines, num_samples: int, split_size: int) -> Timeline:
    """Simulate a step by 1F1B; nothing is run. A last micro-batch that is smaller costs less.

    The timeline is in seconds; its makespan is the predicted step time. There is one stage per
    device.
    """
    sizes = microbatch_sizes(num_samples, microbatch_size=split_size)
    stages = len(lines.forward)
    plan = make_schedule("1f1b", stages, stages, len(sizes))
    return slowed(simulate(plan, [lines.costs(size) for size in sizes]), lines.at_once)


def slowed(step: Timeline, factor: float) -> Timeline:
    """The same step, if everything takes `factor` times as long while two or more devices work."""
    moments = sorted({moment for event in step.events for moment in (event.start, event.end)})
    later = {moments[0]: moments[0]}
    for start, end in itertools.pairwise(moments):
        at_work = sum(event.start <= start < event.end for event in step.events)
        later[end] = later[start] + (end - start) * (factor if at_work > 1 else 1.0)
    events = [
        event._replace(start=later[event.start], end=later[event.end]) for event in step.events
    ]
    return dataclasses.replace(step, events=tuple(events)) if factor != 1 else step


@dataclass(frozen=True)
class SplitWork:
    """What is swept: a model in two stages, one mini-batch, and the split sizes."""

    stages: list[nn.Sequential]
    images: Tensor  # on the first device, and the labels too
    labels: Tensor
    sizes: list[int]  # each divides the mini-batch


def split_work(
    devices: Sequence[DeviceLike], pixels: int | None = None, width: int | None = None
) -> SplitWork:
    """Work on which a pipeline pays, sized for the kind of device: a step takes about a second.

    It is ResNet50, on a CPU half as wide, cut behind layer2 as in PyTorch's tutorial. The sizes
    begin at 16 on a CPU: with fewer samples torch takes a slower kernel for 1x1 convolutions on one
    thread, which is no cost of pipelining. On GPUs there are 120 images, as in the tutorial. With
    fewer `pixels` a side or a smaller `width` (ResNet50's is 64) there is less work.
    """
    from mpcourse.splitting.resnet import thin_resnet50  # here: torchvision takes seconds

    place = as_devices(devices)[0].device
    on_cpu = place.type == "cpu"
    own, image, unit = (32, 96, 8) if on_cpu else (64, 128, 10)
    blocks = thin_resnet50(width or own, num_classes=10).to(memory_format=torch.channels_last)
    cut = [name.startswith("layer3") for name, _ in blocks.named_children()].index(True)
    side = pixels or image
    images = torch.randn(12 * unit, 3, side, side, device=place)
    labels = torch.randint(10, (len(images),), device=place)
    units = (2, 3, 4, 6, 12) if on_cpu else (1, 2, 3, 4, 6, 12)
    images = images.to(memory_format=torch.channels_last)
    return SplitWork([blocks[:cut], blocks[cut:]], images, labels, [n * unit for n in units])


def measure_stages(
    work: SplitWork,
    devices: Sequence[DeviceLike],
    loss_fn: Loss,
    at_once: float = 1.0,
) -> StageLines:
    """Time each stage alone, one micro-batch at a time, at `timed_sizes`, and fit the lines.

    In the naive schedule a stage works while the other device idles, so its times are its own. The
    stages' gradients are added to. There is one device per stage, and the loss is a part of the
    last. `at_once` is kept beside the lines.
    """
    sizes = timed_sizes(work.sizes)
    events: dict[int, list[Event]] = {size: [] for size in sizes}
    naive = {n: Pipeline(work.stages, devices, "naive", microbatch_size=n) for n in sizes}
    for run in range(1 + limited(REPEATS)):
        for size, pipeline in naive.items():
            pipeline.step(work.images[:size], work.labels[:size], loss_fn)
            events[size] += pipeline.timeline.events if run else ()
    costs = [costs_from(Timeline(tuple(events[size]), len(work.stages))) for size in sizes]

    def lines(direction: str) -> tuple[Line, ...]:
        columns = zip(*(getattr(cost, direction) for cost in costs), strict=True)
        return tuple(fit_line(sizes, times) for times in columns)

    return StageLines(lines("forward"), lines("backward"), at_once)
