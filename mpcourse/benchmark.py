"""What the workers and the engine cost, and what they gain: `python -m mpcourse.benchmark`.

Everything is measured in one go on the machine at hand; figures are ratios or medians of
interleaved repeats. Nothing here asserts: a busy machine gives worse figures, not an error.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mpcourse.devices import Device, describe_devices, get_devices
from mpcourse.named_schedules import make_schedule
from mpcourse.pipeline import Pipeline
from mpcourse.resnet import ModelParallelResNet50
from mpcourse.simulate import Costs, simulate
from mpcourse.timing import describe_machine, measure, measure_overlap, measure_together
from mpcourse.work import matrix_jobs

Row = tuple[str, str, str]  # what, figure, what it is held against


def overlap(devices: Sequence[Device]) -> Row:
    """Two equal jobs on two workers, over one on one."""
    ratio = measure_overlap(matrix_jobs(devices, seconds=0.1), devices)
    return "two workers, equal jobs", f"{ratio:.2f} x the time of one", "1 is full overlap"


def hand_over(device: Device) -> Row:
    """An empty function handed to a worker and waited for."""
    timing = measure(lambda: [device.run(int) for _ in range(200)], [device])
    return "hand-over and wait", f"{timing.median_s / 200 * 1e6:.0f} us", ""


def engine_cost(devices: Sequence[Device]) -> Row:
    """A step over stages so small that the engine is all that is left."""
    pipeline = Pipeline([nn.Linear(8, 8), nn.Linear(8, 8)], devices, num_microbatches=16)
    batch, loss_fn = (torch.randn(16, 8), torch.randn(16, 8)), nn.MSELoss()
    timing = measure(lambda: pipeline.step(*batch, loss_fn), devices, warmup=20, repeats=50)
    actions = len(pipeline.timeline.events)
    figure = f"{timing.median_s / actions * 1e6:.0f} us an action"
    return "engine, two tiny stages, 16 micro-batches", figure, "the aim: under 50 us"


def resnet(devices: Sequence[Device], batch: int, image: int, sizes: Sequence[int]) -> list[Row]:
    """ResNet50, forward and backward: schedules against one worker and against the simulator."""
    place = devices[0].device
    model = ModelParallelResNet50(devices, num_classes=10).to(memory_format=torch.channels_last)
    stages = model.stages()
    images = torch.randn(batch, 3, image, image, device=place)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,), device=place)
    rows = []
    for size in sizes:
        rows += _compare(devices, stages, images, labels, size)
    return rows


def _compare(
    devices: Sequence[Device], stages: list[nn.Module], images: Tensor, labels: Tensor, size: int
) -> list[Row]:
    loss_fn, count = nn.CrossEntropyLoss(), -(-len(images) // size)
    names = ("naive", "gpipe", "1f1b")
    pipelines = {n: Pipeline(stages, devices, n, microbatch_size=size) for n in names}
    alone = Pipeline([nn.Sequential(*stages)], devices[:1], "naive", microbatch_size=size)
    whole = Pipeline([nn.Sequential(*stages)], devices[:1], "naive", num_microbatches=1)
    runs = {"whole": whole, "alone": alone, **pipelines}
    times = measure_together(
        {n: _stepper(p, images, labels, loss_fn) for n, p in runs.items()}, devices, repeats=5
    )
    costs = _stage_costs(pipelines["naive"], images, labels, loss_fn)
    title = f"ResNet50, {len(images)} images of {images.shape[-1]}, micro-batches of {size}"
    base, rows = times["alone"].median_s, []
    ratio = f"{base / times['whole'].median_s:.2f} x"
    rows.append((f"{title}: one worker, whole batch", ratio, "one worker, same micro-batches: 1"))
    for name in names:
        best = simulate(make_schedule(name, 2, 2, count), costs).makespan
        taken = times[name].median_s
        figure = f"{base / taken:.2f} x, {best / taken:.0%} of what its stages allow"
        rows.append((f"{title}: {name}", figure, f"equal stages: {2 * count / (count + 1):.2f} x"))
    return rows


def _stepper(
    pipeline: Pipeline, images: Tensor, labels: Tensor, loss_fn: nn.Module
) -> Callable[[], Tensor]:
    return lambda: pipeline.step(images, labels, loss_fn)


def _stage_costs(
    naive: Pipeline, images: Tensor, labels: Tensor, loss_fn: nn.Module, repeats: int = 3
) -> Costs:
    """The stages' own times: in the naive schedule each runs while the other device idles."""
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(repeats):
        naive.step(images, labels, loss_fn)
        for event in naive.timeline.events:
            key = (event.action.kind, event.action.stage_index)
            found.setdefault(key, []).append(event.duration)
    mean = {key: sum(values) / len(values) for key, values in found.items()}
    return Costs([mean["F", 0], mean["F", 1]], [mean["B", 0], mean["B", 1]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; `--short` takes some seconds, without it some minutes."""
    parser = argparse.ArgumentParser(prog="python -m mpcourse.benchmark", description=__doc__)
    parser.add_argument("--short", action="store_true", help="smaller images, one size")
    short = parser.parse_args(arguments).short
    devices = get_devices(2)
    print(f"measured here: {describe_machine()}\n{describe_devices(devices)}\n", flush=True)
    parts: list[Callable[[], list[Row]]] = [
        lambda: [overlap(devices)],
        lambda: [hand_over(devices[0])],
        lambda: [engine_cost(devices)],
        lambda: resnet(devices, *((8, 64, [4]) if short else (32, 128, [16, 8, 4]))),
    ]
    for part in parts:
        for what, figure, against in part():
            print(f"{what:<66} {figure:<44} {against}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
