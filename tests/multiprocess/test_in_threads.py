"""Threads as ranks: results by rank, real sums, failures that name the rank."""

import contextlib
import re
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch import distributed

from mpcourse.devices.timing import LIMIT
from mpcourse.multiprocess import (
    in_threads,
    ranks_in_threads,
    timed_in_turns,
    torch_ranks_in_threads,
)

TASKS = Path("/proc/self/task")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_rank_has_its_place_and_the_sum(ranks: int):
    def program(group):
        value = torch.tensor([1.0 + group.rank()])
        distributed.all_reduce(value, group=group)
        return group.rank(), group.size(), value.item()

    total = ranks * (ranks + 1) / 2
    assert ranks_in_threads(program, ranks) == [(r, ranks, total) for r in range(ranks)]


@pytest.mark.parametrize("fails", [False, True])
def test_torch_finds_each_thread_s_group_by_itself_and_none_afterwards(fails: bool):
    seen, before = [], distributed.distributed_c10d._world

    @contextlib.contextmanager
    def meanwhile():
        seen.append("enters")
        yield
        seen.append("leaves")

    def program(group):
        value = torch.tensor([1.0 + distributed.get_rank()])
        distributed.all_reduce(value)
        seen.append("works")
        if fails:
            raise LookupError("on purpose")
        return distributed.get_rank(), distributed.get_world_size(), value.item()

    with pytest.raises(LookupError) if fails else contextlib.nullcontext():
        found = torch_ranks_in_threads(program, 3, meanwhile=meanwhile())
        assert found == [(rank, 3, 6.0) for rank in range(3)]
        assert seen == ["enters", *["works"] * 3, "leaves"]
    assert distributed.distributed_c10d._world is before


FIRST_MESSAGES = """
import json, torch
from torch import distributed
from mpcourse.multiprocess import ranks_in_threads
ranks_in_threads(lambda group: distributed.all_reduce(torch.ones(1), group=group), 2)
print(json.loads(torch._C._distributed_c10d._dump_fr_trace_json()).get("entries", []))"""


def test_torch_s_flight_recorder_stays_out_of_it(monkeypatch):
    """In torch 2.11 two ranks of one process that write to it at once end the process."""
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)  # set by a test before this one
    command = [sys.executable, "-c", FIRST_MESSAGES]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"


def test_what_a_rank_raises_comes_out_and_names_it_not_those_that_waited():
    def program(group):
        if group.rank() == 1:
            raise KeyError("mine")
        distributed.all_reduce(torch.ones(1), group=group)

    with pytest.raises(KeyError, match="mine") as caught:
        ranks_in_threads(program, 2, timeout_s=1)
    assert caught.value.__notes__ == ["raised on rank 1 of 2"]


def test_a_rank_that_never_comes_is_not_waited_for_for_ever():
    def program(group):
        if group.rank() == 0:
            distributed.all_reduce(torch.ones(1), group=group)

    with pytest.raises(RuntimeError) as caught:
        ranks_in_threads(program, 2, timeout_s=1)
    assert caught.value.__notes__ == ["raised on rank 0 of 2"]


@pytest.mark.parametrize("ranks", [0, (2, 0), (), 2.0, (2.0, 2), "2", True])
@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_no_ranks_and_no_time_are_refused(ranks, seconds):
    with pytest.raises(ValueError, match=rf"ranks is {re.escape(repr(ranks))}; .* at least 1"):
        ranks_in_threads(lambda *groups: None, ranks)
    with pytest.raises(ValueError, match=f"timeout_s is {seconds}; it has to be more than 0"):
        ranks_in_threads(lambda group: None, 1, timeout_s=seconds)


def test_on_a_mesh_each_axis_has_its_groups_as_torchs_mesh_numbers_them():
    def program(*groups):
        places = [group.rank() for group in groups]
        ranks = [torch.tensor([0.0 + places[0] * 6 + places[1] * 2 + places[2]]) for _ in groups]
        for rank, group in zip(ranks, groups, strict=True):
            distributed.all_reduce(rank, group=group)
        return places, [int(rank.item()) for rank in ranks]

    results = ranks_in_threads(program, (2, 3, 2))
    mesh = torch.arange(12).reshape(2, 3, 2)
    for rank, (places, sums) in enumerate(results):
        assert mesh[tuple(places)] == rank
        along = [mesh[:, places[1], places[2]], mesh[places[0], :, places[2]]]
        along.append(mesh[places[0], places[1], :])
        assert sums == [int(ranks.sum()) for ranks in along]


def test_a_group_stays_until_all_ranks_are_done():
    """One that goes closes its connections, also to ranks that are still on their way in."""
    groups = {}

    def program(group):
        groups[group.rank()] = weakref.ref(group)
        if group.rank() == 1:
            time.sleep(0.5)  # rank 0 is done
            return groups[0]() is not None

    assert ranks_in_threads(program, 2) == [None, True]


def test_a_message_has_let_go_of_its_tensors_once_the_next_is_over():
    def program(group):
        held = 0
        for _ in range(30):
            value = torch.ones(1000)
            storage = weakref.ref(value.untyped_storage())
            distributed.all_reduce(value, group=group)
            del value
            distributed.all_reduce(torch.ones(1), group=group)
            held += storage() is not None
        return held

    assert ranks_in_threads(program, 4) == [0, 0, 0, 0]


@pytest.mark.skipif(not TASKS.is_dir(), reason="only Linux says what threads are called")
def test_groups_that_wait_for_their_end_share_the_thread_that_wakes_for_messages():
    def wakers() -> int:
        return sum(path.read_text().startswith("gloo_tcp") for path in TASKS.glob("*/comm"))

    ranks_in_threads(lambda group: None, 1)
    before = wakers()
    held = [ranks_in_threads(lambda group: group, 2) for _ in range(3)]
    assert wakers() <= before
    assert len(held) == 3


def test_ways_are_timed_in_turns_until_the_last_rank_has_ended(monkeypatch):
    def program(group):
        called = []
        ways = [lambda: called.append("a"), lambda: called.append(time.sleep(0.05 * group.rank()))]
        return timed_in_turns(group, *ways, turns=9), called

    monkeypatch.setenv(LIMIT, "3")
    for times, called in ranks_in_threads(program, 2):
        assert called == 4 * ["a", None]  # one turn more warms up
        assert times.shape == (2, 3)
        assert (times[1] >= 0.045).all()  # on rank 0, too, which waits


def test_a_call_behind_one_that_never_ends_says_so():
    start = time.monotonic()
    with in_threads._one_world, pytest.raises(RuntimeError, match="restart the kernel"):
        torch_ranks_in_threads(lambda group: None, 2, turn_s=0.05)
    assert time.monotonic() - start < in_threads.TURN_S / 2
    assert torch_ranks_in_threads(lambda group: group.rank(), 2) == [0, 1]
