"""Two processes under torchrun, started from the benchmark."""

import contextlib
import io
import json
import os
import shlex
from collections.abc import Callable, Sequence

import torch
from torch import distributed

from mpcourse.multiprocess.scripts import Scripts

Row = tuple[str, str, str]  # what, figure, what it is held against


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
