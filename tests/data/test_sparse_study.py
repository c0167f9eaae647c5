"""The study of page `sparse_training` repeats itself and prunes as far as it says."""

import pytest
import sparse_study
import torch
from pruned import sparsities_seen
from sparse_study import (
    DRY,
    FAR_RATES,
    FAR_RIVALS,
    SMALL,
    WAYS,
    compare_far,
    compare_pairs,
    compare_regrown,
    erk_sparsities,
)

from mpcourse.pruning import count_nonzeros, random_scores
from mpcourse.training.in_memory import train
from mpcourse.training.nets import lenet_300_100, linear_net


def test_a_seed_fixes_the_pairs_and_the_small_net_has_as_many_weights_as_are_left(run, data):
    rows, again = (run(compare_pairs, data, 3, DRY) for _ in range(2))
    assert rows == again
    assert run(compare_pairs, data, 4, DRY) != rows
    assert [row["way"] for row in rows] == [
        *("small and dense", "ticket", "early ticket", "redrawn", "rounds 1 of 1")
    ]
    assert all(row["accuracy"] > 0.5 for row in rows)
    counts = count_nonzeros(linear_net(*SMALL)).values()
    assert sum(count for _, count in counts) == pytest.approx(0.05 * 266_200, rel=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_ends_at_its_sparsity(way, run, data):
    torch.manual_seed(0)
    dense = lenet_300_100().to(data.place)
    model = run(sparse_study._pruned, dense, way, 0.9, data, 1)
    counts = count_nonzeros(model).values()
    assert sum(left for left, _ in counts) == pytest.approx(0.1 * 266_200, rel=1e-2)


def test_far_pruned_nets_and_rivals_try_every_rate_and_never_train_on_held_out_digits(
    run, data, monkeypatch
):
    trained_on = []

    def noted(model, digits, *how):
        trained_on.append(len(digits.shuffled.dataset))
        train(model, digits, *how)

    monkeypatch.setattr(sparse_study, "train", noted)
    rows = run(compare_far, data, 3, DRY)
    each = [*((way, 300, 100) for way in WAYS), *(("dense", *hidden) for hidden in FAR_RIVALS)]
    assert [(row["way"], row["first"], row["second"]) for row in rows] == each * len(FAR_RATES)
    assert [row["rate"] for row in rows[:: len(each)]] == list(FAR_RATES)
    assert set(trained_on) == {3000}  # of the 4,000; the last 1,000 are held out
    assert any(row["held_out"] != row["accuracy"] for row in rows)


def test_regrowth_has_as_many_weights_by_either_share(run, data, monkeypatch):
    sizes = random_scores(lenet_300_100())
    sparsities = erk_sparsities(sizes, 0.05)
    left = {name: (1 - sparsities[name]) * sizes[name].numel() for name in sizes}
    assert sum(left.values()) == pytest.approx(0.05 * 266_200)
    ratios = {round(left[name] / sum(sizes[name].shape), 6) for name in sizes}
    assert len(ratios) == 1  # weights go with inputs plus outputs
    seen = sparsities_seen(monkeypatch, data)
    rows = run(compare_regrown, data, 3, DRY)
    assert [row["way"] for row in rows] == ["equal", "ERK", "dense"]
    assert seen == pytest.approx([0.95, 0.95, 0.0], abs=2e-3)
