"""What handing work over and running a schedule cost, beside no work at all."""

import sys
from collections.abc import Sequence

import torch
from torch import distributed, nn

from mpcourse.benchmark.torch_pipeline import TORCH, Work, on_one_thread, take_part, torch_step
from mpcourse.benchmark.two_ranks import Row, rows_of, run_program
from mpcourse.devices.devices import Device, as_devices
from mpcourse.devices.jobs import matrix_jobs
from mpcourse.devices.timing import limited, measure, measure_overlap, measure_together
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.smallest import SmallestPipeline
from mpcourse.schedules.named import make_schedule

SMALLEST = "the smallest pipeline"


def overlap(devices: Sequence[Device]) -> Row:
    """Two equal jobs on two workers, over one on one."""
    ratio = measure_overlap(matrix_jobs(devices, seconds=0.1), devices)
    return "two workers, equal jobs", f"{ratio:.2f} x the time of one", "1 is full overlap"


def hand_over(device: Device) -> Row:
    """An empty function handed to a worker and waited for."""
    timing = measure(lambda: [device.run(int) for _ in range(200)], [device])
    return "hand-over and wait", f"{timing.median_s / 200 * 1e6:.0f} us", ""


def tiny_work(count: int) -> Work:
    """Stages so small that an engine is all that is left."""
    stages = [nn.Linear(8, 8) for _ in range(2)]
    return Work(stages, torch.randn(count, 8), torch.randn(count, 8), nn.MSELoss())


def engine_cost(steps: int, repeats: int) -> list[Row]:
    """What an action costs over tiny stages: with our engine and with torch's in two processes.

    On CPU cores, whatever there is: the others, too, run there.
    """
    return rows_of(__name__, 16, steps, repeats)


def measure_engines(_: torch.device, count: int, steps: int, repeats: int) -> list[Row]:
    """In a rank: the engines in turns, on rank 0."""
    work = tiny_work(count)
    theirs = on_one_thread(torch_step(tiny_work(count), "1f1b", count), steps)
    if distributed.get_rank() != 0:
        take_part([theirs], 1 + limited(repeats))
        return []
    devices = as_devices(["cpu"] * 2)
    ours = Pipeline(work.stages, devices, num_microbatches=count)
    schedule = make_schedule("1f1b", 2, 2, count)
    smallest = SmallestPipeline(tiny_work(count).stages, devices, schedule)
    fns = {
        "no engine, a loop": lambda: devices[0].run(_loop, work, steps),
        SMALLEST: lambda: [smallest.step(*work[1:]) for _ in range(steps)],
        "our engine": lambda: [ours.step(*work[1:]) for _ in range(steps)],
        f"{TORCH} over gloo": theirs,
    }
    times = measure_together(fns, devices, warmup=1, repeats=repeats)
    per_action = 1e6 / (steps * 4 * count)  # two stages, forward and backward
    least = times[SMALLEST].median_s
    return [
        (
            f"two tiny stages, {count} micro-batches: {name}",
            f"{timing.median_s * per_action:.0f} us an action",
            f"{timing.median_s / least:.2f} x {SMALLEST}",
        )
        for name, timing in times.items()
    ]


def _loop(work: Work, steps: int) -> None:
    """The work itself, one micro-batch of one sample after the other, in one worker."""
    model = nn.Sequential(*work.stages)
    for _ in range(steps):
        for rows, targets in zip(work.inputs.split(1), work.targets.split(1), strict=True):
            work.loss_fn(model(rows), targets).backward()


if __name__ == "__main__":
    run_program(measure_engines, sys.argv[1:])
