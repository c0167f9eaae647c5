"""The studies of page `pruning` run on one seed; a seed fixes what comes out."""

import re

import numpy as np
import pruning_study
import torch
from pruning_study import (
    DRY,
    NARROWER,
    SHARES,
    SMALL,
    WAYS,
    Budget,
    _cut_inside,
    compare_criteria,
    compare_shares,
    compare_small,
    compare_trunk,
    packed_bytes,
    right_digits,
    rounded,
    shares_by_scan,
)
from torch import nn

from mpcourse.capstone.trials import Digits
from mpcourse.devices import read_recording, values_by
from mpcourse.exercises.pruning import Residual
from mpcourse.pruning import apply_masks, bytes_in_formats, global_masks, magnitude
from mpcourse.training.nets import lenet_300_100, linear_net


def test_a_seed_fixes_the_result(run, data):
    first, again = (run(compare_criteria, data, 3, DRY) for _ in range(2))
    assert first == again
    assert run(compare_criteria, data, 4, DRY) != first
    held_out = {row["criterion"]: row["held_out"] for row in first}
    assert len(held_out) == 5
    assert min(held_out["magnitude"], held_out["movement"]) > 3 * held_out["random"]


def test_a_scan_shares_out_no_more_weights_than_equal_cuts_and_loses_less(run, data):
    rows = {(row["way"], row["sparsity"]): row for row in run(compare_shares, data, 0, DRY)}
    assert len(rows) == 6
    for sparsity, most in ((0.9, 26_620), (0.98, 5_324)):
        scan, equal, threshold = (rows[way, sparsity] for way in ("scan", "equal", "threshold"))
        assert scan["left"] <= most == equal["left"] == threshold["left"]
        assert min(scan["cut"], threshold["cut"]) > equal["cut"]
        assert equal["cut"] == equal["accuracy"]  # without an epoch of tuning


def test_the_layer_that_loses_least_for_its_weights_is_cut():
    scores = {"large": torch.ones(20, 10), "small": torch.ones(10)}
    kept = len(SHARES) - 1
    scanned = {"large": [0.9 - 0.01 * i for i in range(kept + 1)], "small": [0.9] + [0.1] * kept}
    found = shares_by_scan(scanned, scores, 0.9)
    assert found == {"large": 0.95, "small": 0}  # 10 and 10 weights of 210 are left
    scanned["small"] = [0.9] * len(SHARES)  # bears everything
    assert shares_by_scan(scanned, scores, 0.9)["large"] == 0.9


def test_the_small_net_has_the_bytes_of_the_pruned_one(run, data, monkeypatch):
    net = lenet_300_100().to(data.place)
    apply_masks(net, global_masks(magnitude(net), 0.9))
    most = bytes_in_formats(net)["bit mask"]
    assert 0.95 * most < bytes_in_formats(linear_net(*SMALL))["dense"] < most
    monkeypatch.setattr(Digits, "test_accuracy", lambda _, model: bytes_in_formats(model)["dense"])
    rows = run(compare_small, data, 3, DRY)
    ways = ["pruned", "pruned, 4 bits", "small", "small, 56 epochs"]
    ways += ["dense", "dense, 4 bits", "dense, 2 bits"]
    new = "narrow", "narrower", "narrower, 28 epochs", "pruned, 28 epochs"
    ways += [f"{net}{bits}" for net in new for bits in ("", ", 4 bits")]
    ways += ["small, 28 epochs", "small, 224 epochs"]
    ways += ["wider, 112 epochs", "wider, 112 epochs, 4 bits", "dense, 28 epochs"]
    assert [row["way"] for row in rows] == ways
    small = [row["way"] for row in rows if row["accuracy"] < most]  # bytes, here
    assert small == [way for way in ways if way.startswith("small")]
    narrow = sum(p.numel() for p in linear_net(*NARROWER).parameters() if p.dim() > 1) / 2
    most = 14_500 + 26_620 / 2 + 8 * 410  # a packed mask, what stays, biases and scales
    assert 0.95 * most < narrow + 8 * (sum(NARROWER) + 10) < most
    assert all(row["held_out"] > 0.6 for row in rows)


def test_a_way_trains_for_the_epochs_of_its_name(run, data, monkeypatch):
    found = []
    monkeypatch.setattr(pruning_study, "train", lambda _, __, epochs, ___: found.append(epochs))
    run(compare_small, data, 0, Budget(rates=(0.1,)))
    for way, *epochs in zip(WAYS, found[::2], found[1::2], strict=True):
        assert sum(epochs) == int((re.findall(r"\d+", way) or [7])[0])
        assert (epochs == [14, 14]) == (way in ("pruned, 28 epochs", "dense, 28 epochs"))


def test_a_cut_inside_and_one_of_the_trunk_leave_as_much_work_as_the_small_nets(run, data):
    rows = {row["way"]: row for row in run(compare_trunk, data, 0, DRY)}
    work = {way: row["multiply_adds"] for way, row in rows.items()}
    assert work["inside"] == work["inside scratch"] == 405_808
    assert work["trunk"] == work["trunk scratch"] == 389_528
    assert (work["inside by chance"], work["whole"]) == (405_808, 779_056)
    for way, row in rows.items():
        assert row["training"] == work[way if "scratch" in way else "whole"]  # an epoch
        assert row["tuned"] == row["fresh"]  # without an epoch of tuning
    assert rows["whole"]["cut"] > rows["inside"]["cut"]
    assert rows["whole"]["fresh"] > max(rows["inside"]["fresh"], rows["trunk"]["fresh"])


def test_a_cut_keeps_the_largest_norms_or_what_chance_draws():
    net = Residual(4, 6)
    sizes = torch.tensor([0.1, 3.0, 2.0, 0.2, 0.3, 4.0])
    for block in net.blocks:
        block[0].weight.data = torch.ones(6, 4, 3, 3) * sizes[:, None, None, None]
    for block in _cut_inside(net).blocks:
        assert block[0].weight[:, 0, 0, 0].tolist() == [3, 2, 4]
    draws = (torch.Generator().manual_seed(seed) for seed in (0, 0, 1))
    cuts = [_cut_inside(net, draw) for draw in draws]
    first, same, changed = (cut.blocks[1][0].weight for cut in cuts)
    assert torch.equal(first, same)
    assert not torch.equal(first, changed)


def test_rounded_weights_are_few_values_a_row_zeros_stay_and_errors_are_least():
    layer = nn.Linear(50, 3)
    layer.weight.data[:, ::2] = 0
    four, two = (rounded(nn.Sequential(layer), bits)[0].weight.detach() for bits in (4, 2))
    for found, most in ((four, 15), (two, 3)):
        assert all(len(row.unique()) <= most for row in found)
        assert not found[:, ::2].any()
    whole = (layer.weight / layer.weight.abs().amax(1, keepdim=True)).round().detach()
    longest = whole * layer.weight.abs().amax(1, keepdim=True)
    errors = [(each - layer.weight).norm() for each in (four, two, longest)]
    assert errors == sorted(errors)
    assert errors[1] < errors[2]


def test_until_it_loses_weights_the_pruned_net_is_the_dense_one(run, data, monkeypatch):
    monkeypatch.setattr("pruning_study.apply_masks", lambda *_: None)
    rows = {row["way"]: row for row in run(compare_small, data, 3, DRY)}
    for way in ("dense", "dense, 28 epochs"):
        assert rows[way.replace("dense", "pruned")] | {"way": way} == rows[way]


def test_a_file_is_packed_whole_and_zeros_cost_their_mask():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    rows, weights = 110, 79_400
    four, two = (packed_bytes(net, bits) - 8 * rows for bits in (4, 2))
    assert 0.8 * weights / 2 < four <= 1.01 * weights / 2
    assert two < 0.6 * four
    assert 0.8 * 4 * weights < packed_bytes(net, 32) - 4 * rows <= 1.01 * 4 * weights
    apply_masks(net, global_masks(magnitude(net), 0.9))
    assert packed_bytes(net, 4) - 8 * rows < weights / 8 + weights / 20
    zeros = nn.Linear(784, 100)
    nn.init.zeros_(zeros.weight)
    assert packed_bytes(zeros, 4) < 8 * 100 + 100


def test_the_right_digits_are_as_many_as_the_accuracy_says(data):
    torch.manual_seed(0)
    net = lenet_300_100().to(data.place)
    digits = bytes.fromhex(right_digits(data, net)[1:])
    assert np.unpackbits(np.frombuffer(digits, np.uint8)).mean() == data.accuracy(net)


def test_in_the_recording_the_narrow_nets_take_no_more_packed_bytes_than_the_pruned_one():
    rows = read_recording("pruning_small.csv").rows
    best = {}
    narrow = "narrow", "narrower, 28 epochs", "wider, 112 epochs"
    for way in ("pruned", "pruned, 28 epochs", *narrow):
        of_it = [row for row in rows if row["way"] == f"{way}, 4 bits"]
        held, packed = (values_by(of_it, "rate", of=of) for of in ("held_out", "packed"))
        best[way] = sum(packed[max(held, key=lambda rate: sum(held[rate]))])
    assert max(best["narrow"], best["narrower, 28 epochs"]) < best["pruned"]
    assert best["wider, 112 epochs"] < 1.01 * best["pruned, 28 epochs"]  # a little on its side
    assert best["narrow"] > 0.95 * best["pruned"]
