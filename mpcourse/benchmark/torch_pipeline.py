"""torch.distributed.pipelining on two ranks, one for each stage: what our engine is held against.

In a program of two ranks, rank 0 times both engines in turns, so that a busy moment meets both;
rank 1 takes its part in torch's turns.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from mpcourse.devices.devices import as_devices
from mpcourse.multiprocess.torch_stage import PipelineStage

TORCH = "torch.distributed.pipelining"
KINDS = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Work(NamedTuple):
    """What every rank builds for itself.

    Attributes:
        stages: All the stages, the same in each process (seed the generator).
        inputs: The mini-batch.
        targets: Of `loss_fn`, a mean over samples.
        loss_fn: `loss_fn(output, target)`.
    """

    stages: Sequence[nn.Module]
    inputs: Tensor
    targets: Tensor
    loss_fn: Callable[[Tensor, Tensor], Tensor]


def torch_step(work: Work, schedule: str, num_microbatches: int) -> Callable[[], Tensor | None]:
    """This rank's part of a step with torch's engine; the last rank's returns the loss."""
    rank, count = distributed.get_rank(), distributed.get_world_size()
    stage = PipelineStage(work.stages[rank], rank, count, torch.device("cpu"))
    runner = KINDS[schedule](stage, num_microbatches, loss_fn=work.loss_fn)

    def step() -> Tensor | None:
        losses: list[Tensor] = []
        inputs = [work.inputs] if rank == 0 else []
        is_last = rank == count - 1
        runner.step(*inputs, **({"target": work.targets, "losses": losses} if is_last else {}))
        return torch.stack(losses).mean() if is_last else None

    return step


def on_one_thread(step: Callable[[], object], times: int = 1) -> Callable[[], None]:
    """The step, in a worker: it computes on one thread, as each of our pipeline's workers does."""
    caller = as_devices(["cpu:2"])[0]  # the pipelines work on the first two

    def steps() -> None:
        for _ in range(times):
            step()

    return lambda: caller.run(steps)


def take_part(ways: Iterable[Callable[[], None]], rounds: int) -> None:
    """On the other ranks: make the steps of torch's that rank 0 times, in the same order."""
    ways = list(ways)
    for _ in range(rounds):
        for way in ways:
            way()
