"""Masks from scores: tables, torch's own choice, and what no mask may do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import prune

from mpcourse.pruning import global_masks, layer_masks, magnitude, n_m_masks, sparsity_of
from mpcourse.training.nets import conv_net, lenet_300_100

NAN = float("nan")
SCORES = {"a": torch.tensor([[1.0, 5.0], [2.0, 6.0]]), "b": torch.tensor([[30.0, 40.0]])}


def as_lists(masks):
    return {name: mask.int().tolist() for name, mask in masks.items()}


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [
        (0, {"a": [[1, 1], [1, 1]], "b": [[1, 1]]}),
        (0.5, {"a": [[0, 1], [0, 1]], "b": [[0, 1]]}),
        ({"a": 0.75, "b": 0.0}, {"a": [[0, 0], [0, 1]], "b": [[1, 1]]}),
        (1.0, {"a": [[0, 0], [0, 0]], "b": [[0, 0]]}),
    ],
)
def test_each_layer_loses_its_own_lowest_and_of_equals_the_first(sparsity, expected):
    assert as_lists(layer_masks(SCORES, sparsity)) == expected
    assert as_lists(layer_masks({"a": torch.ones(5)}, 0.4)) == {"a": [0, 0, 1, 1, 1]}


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [
        (0.0, {"a": [[1, 1], [1, 1]], "b": [[1, 1]]}),
        (0.5, {"a": [[0, 0], [0, 1]], "b": [[1, 1]]}),
        (4 / 6, {"a": [[0, 0], [0, 0]], "b": [[1, 1]]}),  # one threshold may empty a layer
    ],
)
def test_globally_the_lowest_of_all_go(sparsity, expected):
    masks = global_masks(SCORES, sparsity)
    assert as_lists(masks) == expected
    assert sparsity_of(masks) == pytest.approx(sparsity)


def test_what_was_pruned_stays_pruned_and_counts():
    scores = {"a": torch.tensor([9.0, 1.0, 8.0, 2.0])}
    within = {"a": torch.tensor([False, True, True, True])}
    assert as_lists(global_masks(scores, 0.5, within)) == {"a": [0, 0, 1, 1]}
    assert as_lists(global_masks(scores, 0.0, within)) == {"a": [0, 1, 1, 1]}


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.995])
def test_masks_are_those_of_torch(sparsity):
    model = lenet_300_100()
    ours = layer_masks(magnitude(model), sparsity)
    overall = global_masks(magnitude(model), sparsity)
    each, together = lenet_300_100(), lenet_300_100()
    for twin in (each, together):
        twin.load_state_dict(model.state_dict())
    for name in ours:
        layer = prune.l1_unstructured(each.get_submodule(name), "weight", amount=sparsity)
        assert torch.equal(ours[name], layer.weight_mask.bool())
    pairs = [(together.get_submodule(name), "weight") for name in ours]
    prune.global_unstructured(pairs, prune.L1Unstructured, amount=sparsity)
    for name in ours:
        assert torch.equal(overall[name], together.get_submodule(name).weight_mask.bool())


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.floats(0, 1))
def test_nothing_pruned_scores_above_what_is_kept(values, sparsity):
    scores = {"a": torch.tensor(values)}
    mask = layer_masks(scores, sparsity)["a"]
    assert int((~mask).sum()) == round(sparsity * len(values))
    if mask.any() and not mask.all():
        assert scores["a"][~mask].max() <= scores["a"][mask].min()


def test_two_of_every_four_inputs_stay():
    row = torch.tensor([[4.0, 1.0, 3.0, 2.0, 0.0, 0.0, 9.0, 0.0]])
    assert as_lists(n_m_masks({"a": row})) == {"a": [[1, 0, 1, 0, 1, 0, 1, 0]]}
    assert as_lists(n_m_masks({"a": row}, n=1, m=2)) == {"a": [[1, 0, 1, 0, 1, 0, 1, 0]]}
    assert n_m_masks({"a": row}, n=4, m=4)["a"].all()


def test_groups_of_a_convolution_run_over_its_input_channels():
    weight = conv_net().conv2.weight.detach().abs()
    mask = n_m_masks({"conv2": weight})["conv2"]
    groups = mask.reshape(64, 8, 4, 3, 3)
    assert (groups.sum(dim=2) == 2).all()
    kept = torch.where(mask, weight, torch.inf).reshape(64, 8, 4, 3, 3).amin(2)
    gone = torch.where(mask, 0, weight).reshape(64, 8, 4, 3, 3).amax(2)
    assert (kept >= gone).all()


MAKERS = [n_m_masks, lambda s: layer_masks(s, 0.5), lambda s: global_masks(s, 0.5)]
DIVERGED = {"fc1": torch.ones(2, 4), "fc2": torch.ones(2, 4).index_fill(1, torch.tensor(2), NAN)}
NO_SPARSITY = "sparsity is a number from 0 to 1; got"


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        *((layer_masks, (SCORES, s), NO_SPARSITY) for s in (-0.1, 1.01, NAN, True, "0.5")),
        *((global_masks, (SCORES, s), NO_SPARSITY) for s in (-0.1, 1.01, NAN, True, "0.5")),
        *((make, (DIVERGED,), "2 of the 8 scores of fc2 are NaN") for make in MAKERS),
        *((make, ({},), "scores is empty") for make in MAKERS),
        (layer_masks, (SCORES, {"a": 0.5}), r"names \['a'\], the scores name \['a', 'b'\]"),
        (global_masks, (SCORES, 0.5, {"c": torch.ones(2)}), r"within names \['c'\], the scores"),
        (n_m_masks, (magnitude(conv_net()),), "conv1 has 1 inputs, which groups of 4 do not div"),
        (n_m_masks, (SCORES, 5), "1 <= n <= m; got n = 5 and m = 4"),
    ],
)
def test_what_makes_no_mask_is_refused(make, given, words):
    with pytest.raises(ValueError, match=words):
        make(*given)
