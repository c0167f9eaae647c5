"""Threads as ranks: results by rank, real sums, failures that name the rank."""

import pytest
import torch
from torch import distributed

from mpcourse.multiprocess import ranks_in_threads


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_rank_has_its_place_and_the_sum(ranks: int):
    def program(group):
        value = torch.tensor([1.0 + group.rank()])
        distributed.all_reduce(value, group=group)
        return group.rank(), group.size(), value.item()

    total = ranks * (ranks + 1) / 2
    assert ranks_in_threads(program, ranks) == [(r, ranks, total) for r in range(ranks)]


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


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="ranks is 0; it has to be at least 1"):
        ranks_in_threads(lambda group: None, 0)
