"""Two processes under torchrun: started from the benchmark, joined, timed by the slower one."""

import contextlib
import io
import json
import os
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from mpcourse.multiprocess.scripts import Scripts

Row = tuple[str, str, str]  # what, figure, what it is held against
Times = dict[str, list[float]]  # seconds by name, one entry per turn


def rows_of(module: str, *arguments: object) -> list[Row]:
    """Run a module under torchrun; its rank 0 prints the rows as JSON."""
    words = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", module, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        Scripts().run(shlex.join(map(str, words)), time_limit_s=1800)
    return [tuple(row) for row in json.loads(printed.getvalue())]


def run_program(program: Callable[..., list[Row] | None], arguments: Sequence[str]) -> None:
    """In a rank: call a program, which takes whole numbers, in a process group."""
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):  # a GPU for each
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    distributed.init_process_group(backend)
    rows = program(device, *map(int, arguments))
    if distributed.get_rank() == 0:
        print(json.dumps(rows))
    distributed.barrier()
    distributed.destroy_process_group()


def clock(device: torch.device) -> float:
    """The host's clock, in seconds, when the device has done all that was queued on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def in_turns(steps: Mapping[str, Callable[[], Any]], repeats: int, device: torch.device) -> Times:
    """The seconds of each step, on this rank, after one round to warm up."""
    taken: Times = {name: [] for name in steps}
    for _ in range(1 + repeats):
        for name, step in steps.items():
            distributed.barrier()  # nobody waits inside a step for a rank that is late from before
            start = clock(device)
            step()
            taken[name].append(clock(device) - start)
    return {name: times[1:] for name, times in taken.items()}


def from_all_ranks(times: Times) -> list[Times]:
    """The times of all ranks, on every rank."""
    found: list[Times] = [{}] * distributed.get_world_size()
    distributed.all_gather_object(found, times)
    return found


def slowest(ranks: Sequence[Times]) -> Times:
    """A turn takes as long as on its slowest rank."""
    return {
        name: [max(turn) for turn in zip(*(times[name] for times in ranks), strict=True)]
        for name in ranks[0]
    }


def paired(times: Times, base: str) -> dict[str, float]:
    """Each step's time over that of the base in the same turn: the median ratio."""
    return {
        name: statistics.median(a / b for a, b in zip(turns, times[base], strict=True))
        for name, turns in times.items()
    }
