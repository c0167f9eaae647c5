"""Both studies of page `pruning` run on one seed; a seed fixes what comes out."""

import channel_study
import pytest
from pruned import sparsities_seen
from pruning_study import DRY, WAYS, compare_criteria, compare_ways


def test_a_seed_fixes_the_result(run, data):
    short = DRY._replace(epochs=1, tuning=0)
    first, again = (run(compare_criteria, data, 3, short) for _ in range(2))
    assert first == again
    assert run(compare_criteria, data, 4, short) != first
    by_name = {(row["criterion"], row["masks"]): row for row in first}
    assert len(by_name) == 10
    assert by_name["magnitude", "global"]["pruned"] > 3 * by_name["random", "layer"]["pruned"]
    for row in first:
        assert row["tuned"] == row["pruned"]  # without an epoch of tuning
        assert row["dense"] > 0.7


def test_every_way_ends_at_its_sparsity(run, data, monkeypatch):
    """What each way hands to the last look at the test images has the zeros that it should have."""
    seen = sparsities_seen(monkeypatch, data)
    rows = run(compare_ways, data, 0, DRY)
    assert [row["way"] for row in rows] == list(WAYS)
    assert seen[::2] == [0.0] * len(WAYS)  # the dense net
    assert seen[1::2] == pytest.approx([0.9] * len(WAYS), abs=1e-3)


def test_the_slim_nets_have_one_size_and_start_from_different_weights(run, data):
    untuned = channel_study.DRY._replace(tuning=0, kept=(0.5,))
    whole, *slim = run(channel_study.compare_channels, data, 0, untuned)
    assert whole["multiply_adds"] == 10_870_120
    assert {row["multiply_adds"] for row in slim} == {2_766_452}
    by_way = {row["way"]: row for row in slim}
    assert by_way["norm"]["pruned"] == by_way["norm"]["tuned"]  # without an epoch of tuning
    assert by_way["norm"]["pruned"] > by_way["random"]["pruned"]
    assert by_way["scratch"]["pruned"] == by_way["scratch twice"]["pruned"] < 0.2
    assert by_way["scratch"]["tuned"] > 0.3
