"""torch.distributed.pipelining, one gloo process per stage, stepped from this process.

What `mpcourse.benchmark` holds the course's own engine against: the same stages, the same
micro-batches, the same number of threads. Page `torch_pipelining` uses torch's engine as its users
do, by torchrun. A program that `multiprocess.launch` starts runs to its end; here steps of both
engines take turns within one run, so that they can be compared in pairs on a noisy machine.
"""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

START_S = 120.0  # importing torch in several new processes takes a while
STEP_S = 300.0


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


class ProcessPipeline:
    """A pipeline of processes, each with one thread; a context manager that ends them.

    Args:
        build: A function of a module (spawned processes look it up) and its arguments: makes the
            `Work`.
        arguments: What `build` is called with.
        num_stages: One process each.
        schedule: "gpipe" or "1f1b".
        num_microbatches: Into how many micro-batches the mini-batch is cut; it has to divide it.

    Raises:
        RuntimeError: A process failed or died; the message names its rank and holds its words.
        TimeoutError: No answer in time; the message names the rank.
    """

    def __init__(
        self,
        build: Callable[..., Work],
        arguments: Sequence[Any],
        num_stages: int,
        *,
        schedule: str,
        num_microbatches: int,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="mpcourse-")
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(num_stages):
            mine, theirs = context.Pipe()
            given = (rank, num_stages, store, theirs, build, arguments, schedule, num_microbatches)
            process = context.Process(target=_serve, args=given, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        try:
            self.threads = self._answers(START_S)
        except BaseException:
            self.close()
            raise

    def step(self, times: int = 1) -> float:
        """Run forward and backward `times` times in all processes; return the last loss."""
        return self._ask("step", times)[-1]

    def gradients(self) -> list[list[Tensor]]:
        """The gradients of one step, per stage; only for equality, they are copied."""
        return self._ask("gradients", None)

    def _ask(self, command: str, argument: Any) -> list[Any]:
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((command, argument))
            except OSError as error:
                raise RuntimeError(f"rank {rank} is gone") from error
        return self._answers(STEP_S)

    def _answers(self, limit_s: float) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            waiting = {pipe: n for n, pipe in enumerate(self._pipes) if n not in answers}
            ready = wait(list(waiting), timeout=limit_s)
            if not ready:
                late = ", ".join(map(str, waiting.values()))
                raise TimeoutError(f"no answer from rank {late} after {limit_s:g} seconds")
            for pipe in ready:
                rank = waiting[pipe]
                answers[rank] = self._receive(rank, pipe)
        return [answers[rank] for rank in range(len(self._pipes))]

    def _receive(self, rank: int, pipe: Connection) -> Any:
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError) as error:
            self._processes[rank].join(timeout=5)
            code = self._processes[rank].exitcode
            raise RuntimeError(f"rank {rank} died (exit code {code})") from error
        if kind == "error":
            raise RuntimeError(f"rank {rank} failed:\n{value}")
        return value

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(
    rank: int,
    num_stages: int,
    store: str,
    pipe: Connection,
    build: Callable[..., Work],
    arguments: Sequence[Any],
    schedule: str,
    num_microbatches: int,
) -> None:
    """One process: build the stage, then answer until the other end of the pipe closes."""
    try:
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo",
            init_method=Path(store).as_uri(),
            rank=rank,
            world_size=num_stages,
            timeout=timedelta(seconds=STEP_S),
        )
        work = build(*arguments)
        step = _stepper(rank, num_stages, work, schedule, num_microbatches)
        pipe.send(("value", torch.get_num_threads()))
        while True:
            command, argument = pipe.recv()
            pipe.send(("value", _answer(command, argument, step, work.stages[rank])))
    except (EOFError, KeyboardInterrupt):
        return  # the other end has closed: nobody waits for an answer
    except BaseException:
        pipe.send(("error", traceback.format_exc()))


def _answer(
    command: str, argument: Any, step: Callable[[], float | None], stage: nn.Module
) -> float | list[Tensor] | None:
    if command == "step":
        loss = None
        for _ in range(argument):
            loss = step()
        return loss
    stage.zero_grad()
    step()
    return [parameter.grad.clone() for parameter in stage.parameters()]


def _stepper(
    rank: int, num_stages: int, work: Work, schedule: str, num_microbatches: int
) -> Callable[[], float | None]:
    """This rank's part of a step with torch's engine; the last rank returns the loss."""
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

    from mpcourse.multiprocess.torch_stage import PipelineStage

    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    stage = PipelineStage(work.stages[rank], rank, num_stages, torch.device("cpu"))
    runner = kind(stage, num_microbatches, loss_fn=work.loss_fn)
    is_last = rank == num_stages - 1

    def step() -> float | None:
        losses: list[Tensor] = []
        inputs = [work.inputs] if rank == 0 else []
        runner.step(*inputs, **({"target": work.targets, "losses": losses} if is_last else {}))
        return torch.stack(losses).mean().item() if is_last else None

    return step
