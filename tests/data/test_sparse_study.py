"""The study of page `sparse_training` at the large rate repeats itself and ends where it says."""

import pytest
import torch
from sparse_study import DRY, WAYS, compare_at_full_rate

from mpcourse.devices.devices import get_devices
from mpcourse.pruning import count_nonzeros
from mpcourse.training.in_memory import Data


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
