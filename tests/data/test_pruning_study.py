"""The studies of page `pruning` run on one seed; a seed fixes what comes out."""

from pruning_study import (
    DRY,
    SMALL,
    compare_channels,
    compare_criteria,
    compare_small,
    compare_trunk,
)

from mpcourse.capstone.trials import Digits
from mpcourse.pruning import apply_masks, bytes_in_formats, global_masks, magnitude
from mpcourse.training.nets import lenet_300_100, linear_net


def test_a_seed_fixes_the_result(run, data):
    first, again = (run(compare_criteria, data, 3, DRY) for _ in range(2))
    assert first == again
    assert run(compare_criteria, data, 4, DRY) != first
    held_out = {row["criterion"]: row["held_out"] for row in first}
    assert len(held_out) == 5
    assert min(held_out["magnitude"], held_out["movement"]) > 3 * held_out["random"]


def test_the_small_net_has_the_bytes_of_the_pruned_one(run, data, monkeypatch):
    net = lenet_300_100().to(data.place)
    apply_masks(net, global_masks(magnitude(net), 0.9))
    most = bytes_in_formats(net)["bit mask"]
    assert 0.95 * most < bytes_in_formats(linear_net(*SMALL))["dense"] < most
    monkeypatch.setattr(Digits, "test_accuracy", lambda _, model: bytes_in_formats(model)["dense"])
    rows = run(compare_small, data, 3, DRY)
    assert [row["way"] for row in rows] == ["pruned", "small", "twice", "more work", "dense"]
    small = [row["way"] for row in rows if row["accuracy"] < most]  # bytes, here
    assert small == ["small", "twice", "more work"]
    assert all(row["held_out"] > 0.6 for row in rows)


def test_a_cut_inside_and_one_of_the_trunk_leave_as_much_work_as_the_small_nets(run, data):
    rows = {row["way"]: row for row in run(compare_trunk, data, 0, DRY)}
    work = {way: row["multiply_adds"] for way, row in rows.items()}
    assert work["inside"] == work["inside scratch"] == 405_808
    assert work["trunk"] == work["trunk scratch"] == 389_528
    assert work["blocks blind"] == work["head blind"] == work["whole"] == 779_056
    for way, row in rows.items():
        assert row["training"] == work[way if "scratch" in way else "whole"]  # an epoch
        assert row["tuned"] == row["fresh"]  # without an epoch of tuning
    assert rows["whole"]["cut"] > rows["inside"]["cut"]
    assert rows["whole"]["fresh"] > max(rows["inside"]["fresh"], rows["trunk"]["fresh"])
    assert rows["blocks blind"]["fresh"] != rows["head blind"]["fresh"] < rows["whole"]["fresh"]


def test_channels_of_the_smallest_norms_cost_least(run, data):
    rows = {row["way"]: row for row in run(compare_channels, data, 0, DRY)}
    assert all(row["tuned"] == row["pruned"] for row in rows.values())  # without an epoch of tuning
    assert rows["whole"]["pruned"] > rows["norm"]["pruned"] > rows["random"]["pruned"]


def test_until_it_loses_weights_the_pruned_net_is_the_dense_one(run, data, monkeypatch):
    monkeypatch.setattr("pruning_study.apply_masks", lambda *_: None)
    rows = {row["way"]: row for row in run(compare_small, data, 3, DRY)}
    assert rows["pruned"] | {"way": "dense"} == rows["dense"]
