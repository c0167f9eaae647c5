"""The study of page `sparse_training` repeats itself and prunes as far as it says."""

import pytest
import torch
from sparse_study import DRY, SMALL, WAYS, compare_at_full_rate, compare_pairs, repaired, see_dips

from mpcourse.devices.devices import get_devices
from mpcourse.pruning import apply_masks, count_nonzeros, global_masks, magnitude
from mpcourse.sparse_training import cubic_sparsity
from mpcourse.training.in_memory import Data
from mpcourse.training.nets import lenet_300_100, linear_net


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(get_devices(1)[0].device)


def test_a_seed_fixes_the_result(data: Data):
    run = get_devices(1)[0].run
    first, again = (run(compare_at_full_rate, data, 3, DRY) for _ in range(2))
    assert first == again
    assert run(compare_at_full_rate, data, 4, DRY) != first
    assert [row["way"] for row in first] == list(WAYS)
    assert all(row["accuracy"] > 0.6 for row in first)


def test_every_way_ends_at_its_sparsity(data: Data, monkeypatch):
    seen = []

    def look(model: torch.nn.Module) -> float:
        counts = count_nonzeros(model).values()
        seen.append(1 - sum(kept for kept, _ in counts) / sum(count for _, count in counts))
        return 0.5

    monkeypatch.setattr(data, "accuracy", look)
    get_devices(1)[0].run(compare_at_full_rate, data, 0, DRY)
    assert seen[:2] == [0.0, 0.0]  # the dense net, before and after
    assert seen[2:] == pytest.approx([0.9] * len(WAYS), abs=1e-3)


def test_a_repaired_net_has_the_mean_outputs_of_the_whole_one(data: Data):
    whole, pruned = (lenet_300_100().to(data.place) for _ in range(2))
    pruned.load_state_dict(whole.state_dict())
    apply_masks(pruned, global_masks(magnitude(pruned), 0.9))
    fixed = repaired(whole, pruned, data)
    pixels = data.all_train[0].flatten(1)
    means = [model.fc1(pixels).mean(0) for model in (whole, pruned, fixed)]
    torch.testing.assert_close(means[2], means[0], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(means[1], means[0], atol=1e-2)


def test_each_stroke_is_seen_once_at_the_sparsity_of_the_schedule(data: Data):
    once, *gradual = get_devices(1)[0].run(see_dips, data, 3, DRY)
    assert (once["way"], once["sparsity"]) == ("at once", 0.95)
    assert [row["step"] for row in gradual] == [10, 20, 30, 40, 50, 60] * 2
    assert [row["rate"] for row in gradual] == [0.05] * 6 + [0.01] * 6
    for row in gradual:
        assert row["sparsity"] == round(cubic_sparsity(row["step"], final=0.95, end=140), 4)
    assert len({row["end"] for row in gradual}) == 2


def test_pairs_are_of_one_seed_and_the_small_net_has_as_many_weights_as_are_left(data: Data):
    rows = get_devices(1)[0].run(compare_pairs, data, 3, DRY)
    assert [row["way"] for row in rows] == [
        *("small and dense", "ticket", "early ticket", "redrawn", "rounds 1 of 1"),
        *("L1", "no L1", "L1, then none", "L1 all the time", "by size"),
    ]
    assert all(row["accuracy"] > 0.5 for row in rows)
    counts = count_nonzeros(linear_net(*SMALL)).values()
    assert sum(count for _, count in counts) == pytest.approx(0.05 * 266_200, rel=1e-3)
