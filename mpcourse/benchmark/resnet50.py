"""ResNet50, forward and backward, by every way to run it: the same work, in turns.

Held against one worker that goes through the same micro-batches, and against what the simulator
says of the stages' own times if transfers took none.
"""

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from mpcourse.benchmark.torch_pipeline import TORCH, Work, on_one_thread, take_part, torch_step
from mpcourse.benchmark.two_ranks import Row, rows_of, run_program
from mpcourse.devices.devices import Device, as_devices
from mpcourse.devices.timing import Timing, limited, measure_together
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.named import make_schedule
from mpcourse.schedules.simulation import Costs, costs_from, simulate
from mpcourse.schedules.timeline import Timeline
from mpcourse.splitting.resnet import ModelParallelResNet50, PipelineParallelResNet50

SCHEDULES = ("naive", "gpipe", "1f1b")
BASE = "one worker, same micro-batches"
WARMUP = 1
COST_STEPS = 3


class _Relayout(torch.autograd.Function):
    """Values in one memory layout; their gradient goes back in the layout that they came in."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, memory_format: torch.memory_format) -> Tensor:
        ctx.came_plain = values.is_contiguous()
        return values.contiguous(memory_format=memory_format)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        came = torch.contiguous_format if ctx.came_plain else torch.channels_last
        return gradient.contiguous(memory_format=came), None


class MemoryFormat(nn.Module):
    """Sees to the memory layout of what passes: the same numbers, a copy only where it differs."""

    def __init__(self, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.memory_format = memory_format

    def forward(self, values: Tensor) -> Tensor:
        """Take values of shape (N, C, H, W)."""
        return _Relayout.apply(values, self.memory_format)


def resnet50_work(batch: int, image: int, gloo: bool = False) -> Work:
    """ResNet50 in two stages, the same in every process.

    Its convolutions work with the channels innermost, which is fastest on CPUs, in both engines;
    gloo sends plain layouts only, so there the edge between the stages copies.
    """
    torch.manual_seed(0)
    model = ModelParallelResNet50(["cpu", "cpu"], num_classes=10)
    front, back = model.to(memory_format=torch.channels_last).stages()
    into, out = MemoryFormat(torch.channels_last), [MemoryFormat(torch.contiguous_format)] * gloo
    stages = [nn.Sequential(into, *front, *out), nn.Sequential(into, *back)]
    images, labels = torch.randn(batch, 3, image, image), torch.randint(0, 10, (batch,))
    return Work(stages, images, labels, nn.CrossEntropyLoss())


def compare(
    devices: Sequence[Device], batch: int, image: int, size: int, repeats: int
) -> list[Row]:
    """Run all ways in turns, at one size of micro-batch.

    On CPU cores torch's engine takes its turns, in two processes; on GPUs a page of the course
    starts it with nccl.

    Args:
        devices: Two of them.
        batch: Images in the mini-batch.
        image: Their height and width.
        size: Images in a micro-batch; it divides `batch`.
        repeats: Turns of each way that count.
    """
    if devices[0].device.type == "cpu":
        return rows_of(__name__, batch, image, size, repeats)
    return _compare(devices, batch, image, size, repeats, {})


def compare_with_torch(
    _: torch.device, batch: int, image: int, size: int, repeats: int
) -> list[Row]:
    """In a rank: all ways on rank 0, and torch's on both."""
    work, count = resnet50_work(batch, image, gloo=True), batch // size
    theirs = {
        f"{TORCH}, {name}": on_one_thread(torch_step(work, name, count)) for name in SCHEDULES[1:]
    }
    if distributed.get_rank() != 0:
        take_part(theirs.values(), WARMUP + limited(repeats))
        return []
    torch.set_num_threads(os.cpu_count() or 1)  # of the model that is not split; torchrun gave one
    return _compare(as_devices(["cpu"] * 2), batch, image, size, repeats, theirs)


def _compare(
    devices: Sequence[Device],
    batch: int,
    image: int,
    size: int,
    repeats: int,
    theirs: Mapping[str, Callable],
) -> list[Row]:
    place = devices[0].device
    work = resnet50_work(batch, image)
    work = work._replace(inputs=work.inputs.to(place), targets=work.targets.to(place))
    pipelines = {
        name: Pipeline(work.stages, devices, name, microbatch_size=size) for name in SCHEDULES
    }
    whole = nn.Sequential(*work.stages) if devices[0].device == devices[1].device else None
    ways = {name: _step_of(pipeline, work) for name, pipeline in pipelines.items()}
    ways |= _one_worker(devices, work, size) | _by_autograd(devices, work, size, whole) | theirs
    times = measure_together(ways, devices, warmup=WARMUP, repeats=repeats)
    costs = stage_costs(pipelines["naive"], work)
    return _rows(f"{batch} x {image}, by {size}", times, costs, batch // size)


def _step_of(pipeline: Pipeline, work: Work) -> Callable[[], Tensor]:
    return functools.partial(pipeline.step, work.inputs, work.targets, work.loss_fn)


def _one_worker(devices: Sequence[Device], work: Work, size: int) -> dict[str, Callable]:
    """The two baselines: a worker of one thread, as the pipeline's are, with its own copy."""
    stages = resnet50_work(len(work.inputs), work.inputs.shape[-1]).stages
    one = [nn.Sequential(*stages)]
    same = Pipeline(one, devices[:1], "naive", microbatch_size=size)
    whole = Pipeline(one, devices[:1], "naive", num_microbatches=1)
    return {BASE: _step_of(same, work), "one worker, whole batch": _step_of(whole, work)}


def _by_autograd(
    devices: Sequence[Device], work: Work, size: int, whole: nn.Module | None
) -> dict[str, Callable]:
    """What leaves the backward to one `loss.backward()` in its caller's thread."""
    ancestor = PipelineParallelResNet50(size, devices, num_classes=10)
    ancestor = ancestor.to(memory_format=torch.channels_last)
    step = functools.partial(_plain_step, ancestor, work)
    caller = as_devices(["cpu:2"])[0]  # one thread: the main thread's backward would take all cores
    ways = {"pipelined forward, autograd's backward": lambda: caller.run(step)}
    if whole is not None:
        ways["not split, torch's own threads"] = functools.partial(_plain_step, whole, work)
    return ways


def _plain_step(model: nn.Module, work: Work) -> None:
    output = model(work.inputs)
    work.loss_fn(output, work.targets.to(output.device)).backward()


def stage_costs(naive: Pipeline, work: Work) -> Costs:
    """The stages' own times: in the naive schedule each runs while the other device idles."""
    events = []
    for _ in range(COST_STEPS):
        naive.step(work.inputs, work.targets, work.loss_fn)
        events += naive.timeline.events
    return costs_from(Timeline(tuple(events), 2))


def _rows(title: str, times: Mapping[str, Timing], costs: Costs, count: int) -> list[Row]:
    """Every way as a ratio to one worker; the pipelined ones against their ceiling too."""
    base = times[BASE].median_s
    rows = [
        (f"ResNet50, {title}: two equal stages", f"{2 * count / (count + 1):.2f} x", "simulated")
    ]
    for way, timing in times.items():
        figure, schedule = f"{base / timing.median_s:.2f} x", way.split(", ")[-1]
        if schedule in SCHEDULES:
            ceiling = simulate(make_schedule(schedule, 2, 2, count), costs).makespan
            figure += f", {ceiling / timing.median_s:.0%} of what its stages allow"
        rows.append((f"ResNet50, {title}: {way}", figure, "" if way != BASE else "the measure"))
    return rows


if __name__ == "__main__":
    run_program(compare_with_torch, sys.argv[1:])
