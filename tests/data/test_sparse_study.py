"""The study of page `sparse_training` repeats itself and prunes as far as it says."""

import pytest
from pruned import sparsities_seen
from sparse_study import (
    DRY,
    RIVALS,
    SMALL,
    WAYS,
    compare_at_full_rate,
    compare_pairs,
    compare_rivals,
)

from mpcourse.pruning import count_nonzeros
from mpcourse.training.nets import linear_net


def test_a_seed_fixes_the_result(run, data):
    first, again = (run(compare_at_full_rate, data, 3, DRY) for _ in range(2))
    assert first == again
    assert run(compare_at_full_rate, data, 4, DRY) != first
    assert [row["way"] for row in first] == list(WAYS)
    assert all(row["accuracy"] > 0.6 for row in first)


def test_every_way_ends_at_its_sparsity(run, data, monkeypatch):
    seen = sparsities_seen(monkeypatch, data)
    run(compare_at_full_rate, data, 0, DRY)
    assert seen[:2] == [0.0, 0.0]  # the dense net, before and after
    assert seen[2:] == pytest.approx([0.9] * len(WAYS), abs=1e-3)


def test_pairs_are_of_one_seed_and_the_small_net_has_as_many_weights_as_are_left(run, data):
    rows = run(compare_pairs, data, 3, DRY)
    assert [row["way"] for row in rows] == [
        *("small and dense", "ticket", "early ticket", "redrawn", "rounds 1 of 1")
    ]
    assert all(row["accuracy"] > 0.5 for row in rows)
    counts = count_nonzeros(linear_net(*SMALL)).values()
    assert sum(count for _, count in counts) == pytest.approx(0.05 * 266_200, rel=1e-3)


def test_every_rival_is_trained_at_both_rates_and_the_smallest_also_for_less_long(run, data):
    rows = run(compare_rivals, data, 3, DRY)
    assert [(row["first"], row["second"]) for row in rows[::2]] == [*RIVALS, SMALL]
    assert [row["rate"] for row in rows] == [0.05, 0.1] * len(RIVALS) + [0.05]
    assert [row["epochs"] for row in rows] == [2] * 2 * len(RIVALS) + [1]
    assert all(row["accuracy"] > 0.5 for row in rows)
