"""The study runs on one seed, repeats itself, and starts where it says."""

import pytest
from pruned import sparsities_seen
from pruning_study import DRY, WAYS, Data, compare_criteria, compare_ways

from mpcourse.devices.devices import get_devices


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(get_devices(1)[0].device)


def test_a_seed_fixes_the_result(data: Data):
    short = DRY._replace(epochs=1, tuning=0)
    run = get_devices(1)[0].run
    first, again = (run(compare_criteria, data, 3, short) for _ in range(2))
    assert first == again
    assert run(compare_criteria, data, 4, short) != first
    by_name = {(row["criterion"], row["masks"]): row for row in first}
    assert len(by_name) == 10
    assert by_name["magnitude", "global"]["pruned"] > 3 * by_name["random", "layer"]["pruned"]
    for row in first:
        assert row["tuned"] == row["pruned"]  # without an epoch of tuning
        assert row["dense"] > 0.7


def test_every_way_ends_at_its_sparsity(data: Data, monkeypatch):
    """What each way hands to the last look at the test images has the zeros that it should have."""
    seen = sparsities_seen(monkeypatch, data)
    rows = get_devices(1)[0].run(compare_ways, data, 0, DRY)
    assert [row["way"] for row in rows] == list(WAYS)
    assert seen[::2] == [0.0] * len(WAYS)  # the dense net
    assert seen[1::2] == pytest.approx([0.9] * len(WAYS), abs=1e-3)
