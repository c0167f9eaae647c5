"""Train through torch.distributed.pipelining, one process per device (page `torch_pipelining`)."""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import pipelining

from mpcourse.devices.timing import HostClock, clock_for
from mpcourse.multiprocess.checkpoints import Checkpoints
from mpcourse.multiprocess.orders import ANY_ORDER, read_order
from mpcourse.multiprocess.pipeline_work import (
    LOSS,
    add_work_options,
    cut,
    make_batches,
    make_net,
    reproducible,
)
from mpcourse.multiprocess.rank import Rank
from mpcourse.multiprocess.torch_stage import PipelineStage
from mpcourse.schedules.named import make_schedule

# Our name -> torch's class, and how many stages each process has. torch has no class for the last
# two; its engine reads the order from us.
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zb1p": ("ScheduleInterleavedZeroBubble", 2),
    "zb-v": ("ScheduleZBVZeroBubble", 2),
    "zb-h1": (ANY_ORDER, 1),
    "zb-h2": (ANY_ORDER, 1),
}
# In torch 2.9, the engine for any order leaves the gradients of a split backward unscaled, and
# ZB-V does not run on it: its tensors between two stages of a process would have to be sent.
NEEDS_TORCH_2_10 = ("zb-v", "zb-h1", "zb-h2")


def available_schedules() -> list[str]:
    """The schedules that this version of torch runs as it should."""
    engine = getattr(pipelining.schedules, ANY_ORDER)
    is_new = issubclass(pipelining.schedules.ScheduleZBVZeroBubble, engine)
    return [name for name in SCHEDULES if is_new or name not in NEEDS_TORCH_2_10]


class Sendable(nn.Module):
    """A tensor that torch's engine can take: gloo sends from contiguous memory, I frees no view."""

    def forward(self, output: Tensor) -> Tensor:
        """Return the same numbers."""
        return output.clone(memory_format=torch.contiguous_format) if _is_bound(output) else output


def _is_bound(output: Tensor) -> bool:
    return output._is_view() or not output.is_contiguous()


class TracedStage(PipelineStage):
    """torch's stage; it also notes what it did when.

    Args:
        module: Its layers.
        index: Which stage, from 0.
        count: How many stages there are.
        rank: The process.
        group: The processes of this pipeline; all when None.

    Attributes:
        clock: Where it notes; shared by the stages of the process, a new one for every step.
    """

    def __init__(
        self,
        module: nn.Module,
        index: int,
        count: int,
        rank: Rank,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        module = nn.Sequential(module, Sendable())
        super().__init__(module, index, count, rank.device, group=group)
        self._rank, self.clock = rank, clock_for(rank.device)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """F of a micro-batch."""
        with self._noted("forward", "F", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, **kwargs: Any
    ) -> Any:
        """B of a micro-batch, or I if the backward is split."""
        with self._noted("backward", "B" if full_backward else "I", bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """W of a micro-batch."""
        with self._noted("backward", "W", bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    @contextmanager
    def _noted(self, where: str, kind: str, microbatch: int) -> Iterator[None]:
        self._rank.at(where)
        self.clock.start(f"{self.stage_index}{kind}{microbatch}")
        yield
        self.clock.end()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The schedule, the work, where to save."""
    add_work_options(parser)
    parser.add_argument("--schedule", choices=list(SCHEDULES), default="1f1b")
    parser.add_argument("--stages-per-rank", type=int, help="for interleaved and zb1p")
    parser.add_argument("--checkpoints", help="a folder; the run goes on from what is in it")
    parser.add_argument("--quiet", action="store_true", help="no line for each step")


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Train, and return this rank's part of what has happened.

    Returns:
        losses (of the rank with the last stage, else empty), gradients (stage -> those of the last
        step), events (of each step: label, start, end), resumed_at, seconds (of each forward and
        backward).
    """
    per_rank = _stages_per_rank(options)
    count = per_rank * rank.world_size
    mine = stages_of(options.schedule, rank.rank, rank.world_size, per_rank)
    stages = enumerate(cut(make_net(options), count))
    own = nn.ModuleDict({str(i): stage for i, stage in stages if i in mine}).to(rank.device)
    optimizer = torch.optim.SGD(own.parameters(), lr=options.learning_rate)
    checkpoints = Checkpoints(options.checkpoints, rank)
    state = checkpoints.load() or {"step": 0, "losses": []}
    resumed_at, losses, seconds, events = state["step"], state["losses"], [], []
    if resumed_at:
        own.load_state_dict(state["stages"])
        optimizer.load_state_dict(state["optimizer"])

    traced = [TracedStage(own[str(index)], index, count, rank) for index in mine]
    step_once = make_step(traced, options)
    for step, (images, targets) in enumerate(make_batches(options)):
        if step < resumed_at:
            continue
        rank.at("step", step)
        optimizer.zero_grad()
        clock = new_clock(traced)
        start = time.perf_counter()
        with reproducible():
            loss = step_once(images.to(rank.device), targets.to(rank.device))
        events.append([(event.action, event.start, event.end) for event in clock.events(rank.rank)])
        seconds.append(time.perf_counter() - start)  # events are known when a GPU is done
        check_gradients(own)
        optimizer.step()
        if loss is not None:
            losses.append(loss)
            if not options.quiet:
                rank.say(f"step {step + 1} of {options.steps}: loss {loss:.3f}")
        saved = {"stages": own.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoints.save(step + 1, {**saved, "losses": losses})
    if resumed_at >= options.steps:
        raise ValueError(f"all {options.steps} steps are done in {options.checkpoints}")
    gradients = {index: [p.grad.cpu() for p in own[str(index)].parameters()] for index in mine}
    return {
        "losses": losses,
        "gradients": gradients,
        "events": events,
        "resumed_at": resumed_at,
        "seconds": seconds,
    }


def make_step(
    stages: list[TracedStage], options: argparse.Namespace
) -> Callable[[Tensor, Tensor], float | None]:
    """One step with torch's engine: images and targets to the loss, where the last stage is."""
    if options.schedule not in available_schedules():
        raise ValueError(f"{options.schedule} needs torch 2.10; this is {torch.__version__}")
    name = SCHEDULES[options.schedule][0]
    kind = getattr(pipelining.schedules, name)
    if options.batch_size % options.microbatches:
        raise ValueError(
            f"torch cuts a mini-batch into equal parts: {options.microbatches} micro-batches do "
            f"not divide {options.batch_size} samples"
        )
    takes_one = options.schedule in ("gpipe", "1f1b")  # the others take a list of stages
    runner = kind(stages[0] if takes_one else stages, options.microbatches, loss_fn=LOSS)
    if name == ANY_ORDER:
        sizes = stages[0].num_stages, stages[0].group_size, options.microbatches
        read_order(runner, make_schedule(options.schedule, *sizes))
    has_first = any(stage.is_first for stage in stages)
    has_last = any(stage.is_last for stage in stages)

    def step(images: Tensor, targets: Tensor) -> float | None:
        losses: list[Tensor] = []
        inputs = [images] if has_first else []
        runner.step(*inputs, **({"target": targets, "losses": losses} if has_last else {}))
        return torch.stack(losses).mean().item() if has_last else None

    return step


def check_gradients(stages: nn.ModuleDict) -> None:
    """Refuse to go on with weights that an engine has left without a gradient."""
    lacking = [name for name, parameter in stages.named_parameters() if parameter.grad is None]
    if lacking:
        raise RuntimeError(f"the backward left no gradient for {', '.join(lacking)}")


def new_clock(stages: list[TracedStage]) -> HostClock:
    """A clock for one step, shared by the stages of this process."""
    clock = clock_for(stages[0].device)
    clock.zero()
    for stage in stages:
        stage.clock = clock
    return clock


def stages_of(schedule: str, rank: int, ranks: int, per_rank: int) -> list[int]:
    """Which stages a rank has: every `ranks`-th one, or in "zb-v" one down and one up the V."""
    if schedule == "zb-v":
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * chunk for chunk in range(per_rank)]


def _stages_per_rank(options: argparse.Namespace) -> int:
    usual = SCHEDULES[options.schedule][1]
    wanted = options.stages_per_rank or usual
    if wanted != usual and options.schedule not in ("interleaved", "zb1p"):
        raise ValueError(f"{options.schedule} has {usual} stage(s) per rank; got {wanted}")
    return wanted
