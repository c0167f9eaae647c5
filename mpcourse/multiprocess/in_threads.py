"""Ranks as threads of this process: a group and real messages, without torchrun's start.

For trying a technique out (page `sharded_data_parallel` and those after it): what runs here
runs in processes as it is.
"""

import functools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import (
    HashStore,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    distributed_c10d,
)
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

from mpcourse.devices.locks import fork_safe_lock
from mpcourse.devices.timing import limited

TURN_S = 60.0  # how long a call waits for its turn
_one_world = fork_safe_lock()


def ranks_in_threads(
    program: Callable[..., Any], ranks: int | Sequence[int], *, timeout_s: float = 20.0
) -> list[Any]:
    """Call `program(group)` in one thread per rank and return the results, by rank.

    On a mesh of ranks, such as (2, 2, 2), call `program(group, group, group)`: of each axis the
    group of those ranks that differ in it alone. Neighbours in number differ in the last axis.

    Each thread's group is a gloo group of its own with `group.rank()` and `group.size()`; pass it
    on as `group=` to the functions of `torch.distributed`. Tensors are on the CPU. The threads
    share torch's global random numbers: draw from a `torch.Generator` of your own.

    Args:
        program: Sends the same messages on all ranks, in the same order.
        ranks: How many, 1 or more; or how many along each axis of a mesh.
        timeout_s: How long a rank waits for the others, in seconds.

    Raises:
        ValueError: `ranks` is less than 1, or `timeout_s` no time.
        Exception: What a rank raised, with a note that names it; if several did, what came first.
    """
    axes = [*ranks] if isinstance(ranks, Sequence) else [ranks]
    if not axes or any(type(size) is not int or size < 1 for size in axes):
        raise ValueError(f"ranks is {ranks!r}; it has to be at least 1 along each axis, and whole")
    if not 0 < timeout_s <= threading.TIMEOUT_MAX:
        raise ValueError(f"timeout_s is {timeout_s}; it has to be more than 0, and finite")
    count, store = math.prod(axes), HashStore()
    results = [Future() for _ in range(count)]
    failures: list[tuple[float, int, BaseException]] = []
    alive = []  # a group that is deleted closes its connections; other ranks may still connect

    def run(rank: int) -> None:
        try:
            groups = [
                gloo_group(PrefixStore(name, store), place, size, timeout_s)
                for name, place, size in _places(rank, axes)
            ]
            alive.append(groups)
            results[rank].set_result(program(*groups))
        except BaseException as error:
            failures.append((time.monotonic(), rank, error))

    names = [f"rank {rank}" for rank in range(count)]
    threads = [threading.Thread(target=run, args=(r,), name=n) for r, n in enumerate(names)]
    # The flight recorder of torch 2.11 ends a process whose ranks write to it at once (SIGSEGV in
    # FlightRecorder::recordWithResetEnabled); a process makes it with its first message, or not.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        if failures:
            _, rank, error = min(failures, key=lambda failure: failure[0])
            error.add_note(f"raised on rank {rank} of {count}")
            raise error
        return [result.result() for result in results]
    finally:  # break the cycle error -> traceback -> frame -> error, which would keep all groups
        error = None
        failures.clear()
        alive.clear()


def torch_ranks_in_threads(
    program: Callable[[ProcessGroup], Any],
    ranks: int,
    *,
    timeout_s: float = 20.0,
    turn_s: float = TURN_S,
    meanwhile: AbstractContextManager | None = None,
) -> list[Any]:
    """`ranks_in_threads`, where each thread's group is torch's default one, as under torchrun.

    For what of torch asks for no group, such as its pipeline engine. Calls take turns, since torch
    has one world for a process: one that was stopped may still wait for a message. `turn_s` is how
    long to wait for the turn. `meanwhile` is entered for the time of the call. Source: torch's own
    tests, `multi_threaded_pg`.

    Raises:
        RuntimeError: The turn did not come within `turn_s` seconds, or as `ranks_in_threads`.
    """

    def on_rank(group: ProcessGroup) -> Any:
        world = distributed_c10d._world
        world.pg_map[group], world.pg_names[group] = ("gloo", None), "ranks in threads"
        world.pg_group_ranks[group], world.default_pg = {r: r for r in range(ranks)}, group
        return program(group)

    if not _one_world.acquire(timeout=turn_s):
        raise RuntimeError("ranks of an earlier call have not ended: restart the kernel")
    try:
        with meanwhile or nullcontext():
            before, distributed_c10d._world = distributed_c10d._world, ThreadLocalWorld()
            try:
                return ranks_in_threads(on_rank, ranks, timeout_s=timeout_s)
            finally:
                distributed_c10d._world = before
    finally:
        _one_world.release()


def timed_in_turns(group: ProcessGroup, *ways: Callable[[], Any], turns: int) -> torch.Tensor:
    """Seconds (ways, turns) of each way in each turn, from all ranks' start to the last one's end.

    All ranks of the group call it, with as many ways. The ways take turns; one more turn warms up.
    Where pages are tested there are fewer turns (`limited`).
    """
    times = torch.zeros(len(ways), limited(turns))
    for turn in range(-1, times.shape[1]):  # the first is overwritten by the last
        for row, way in zip(times, ways, strict=True):
            torch.distributed.barrier(group)
            start = time.perf_counter()
            way()
            torch.distributed.barrier(group)
            row[turn] = time.perf_counter() - start
    return times


def _places(rank: int, axes: Sequence[int]) -> list[tuple[str, int, int]]:
    """Of each axis: a name for the ranks that differ in it alone, this rank's place, their count.

    The last axis runs fastest, as in `init_device_mesh`.
    """
    places, stride = [], 1
    for axis, size in reversed([*enumerate(axes)]):
        place = rank // stride % size
        places.insert(0, (f"axis {axis} from rank {rank - place * stride}/", place, size))
        stride *= size
    return places


@functools.cache
def _device(process: int) -> Any:
    """One for all groups: each device has a thread that wakes a hundred times a second.

    A group goes with the last cycle of references that holds it, so many may wait for that at once.
    In a forked process the thread is not there: that one makes its own.
    """
    return ProcessGroupGloo.create_device(hostname="127.0.0.1")


def gloo_group(store: PrefixStore, rank: int, ranks: int, timeout_s: float) -> ProcessGroup:
    """A group as `init_process_group` makes it, but not the one default group of the process."""
    options = ProcessGroupGloo._Options()
    options._devices = [_device(os.getpid())]
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1  # before a message runs, what sent the last one has let go of its tensors
    group = ProcessGroup(store, rank, ranks)
    backend = ProcessGroupGloo(store, rank, ranks, options)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
    return group
