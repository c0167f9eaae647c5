"""Two ranks add through memory that both see."""

import pytest
import torch
from torch import distributed

from mpcourse.multiprocess import ranks_in_threads, shared_sum
from mpcourse.multiprocess.shared_sum import SharedSum


def test_both_ranks_get_the_sum_also_in_several_pieces_and_many_times(tmp_path):
    addends = [torch.randn(2, *shape) for shape in ((1,), (3, 4), (5, 4), (2, 3, 7))] * 5

    def program(group):
        total, found = SharedSum(tmp_path / "places", group, numbers=12), []
        for pair in addends:
            found.append(pair[group.rank()].clone())
            total(found[-1], group=group)
        total.close()
        return found

    for found in ranks_in_threads(program, 2):
        torch.testing.assert_close(found, [pair.sum(0) for pair in addends])


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_groups_than_two_ranks_are_refused(ranks, tmp_path):
    with pytest.raises(ValueError, match="two ranks"):
        ranks_in_threads(lambda group: SharedSum(tmp_path / "places", group), ranks)


def test_other_numbers_and_a_rank_that_does_not_come_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_sum, "PATIENCE_S", 0.2)

    def program(group):
        total = SharedSum(tmp_path / "places", group)
        with pytest.raises(TypeError, match="float64"):
            total(torch.ones(2, dtype=torch.float64))
        if group.rank() == 0:
            with pytest.raises(TimeoutError, match="rank 1 has not come"):
                total(torch.ones(2))
        distributed.barrier(group)
        total.close()

    ranks_in_threads(program, 2)
