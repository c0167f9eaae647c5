"""Ranks as threads of this process: a group and real messages, without torchrun's start.

For trying a technique out (page `cut_inside_a_layer`): what runs here runs in processes as it is.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import HashStore, ProcessGroup, ProcessGroupGloo


def ranks_in_threads(
    program: Callable[[ProcessGroup], Any], ranks: int, *, timeout_s: float = 20.0
) -> list[Any]:
    """Call `program(group)` in one thread per rank and return the results, by rank.

    Each thread's group is a gloo group of its own with `group.rank()` and `group.size()`; pass it
    on as `group=` to the functions of `torch.distributed`. Tensors are on the CPU. The threads
    share torch's global random numbers: draw from a `torch.Generator` of your own.

    Args:
        program: Sends the same messages on all ranks, in the same order.
        ranks: How many, 1 or more.
        timeout_s: How long a rank waits for the others, in seconds.

    Raises:
        ValueError: `ranks` is less than 1.
        Exception: What a rank raised, with a note that names it; if several did, what came first.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it has to be at least 1")
    store, results = HashStore(), [Future() for _ in range(ranks)]
    failures: list[tuple[float, int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            results[rank].set_result(program(_group(store, rank, ranks, timeout_s)))
        except BaseException as error:
            failures.append((time.monotonic(), rank, error))

    names = [f"rank {rank}" for rank in range(ranks)]
    threads = [threading.Thread(target=run, args=(r,), name=n) for r, n in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        _, rank, error = min(failures, key=lambda failure: failure[0])
        error.add_note(f"raised on rank {rank} of {ranks}")
        raise error
    return [result.result() for result in results]


def _group(store: HashStore, rank: int, ranks: int, timeout_s: float) -> ProcessGroup:
    """A group as `init_process_group` makes it, but not the one default group of the process."""
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout_s)
    group = ProcessGroup(store, rank, ranks)
    backend = ProcessGroupGloo(store, rank, ranks, options)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
    return group
