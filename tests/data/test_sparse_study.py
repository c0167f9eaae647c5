"""The study of page `sparse_training` repeats itself and prunes as far as it says."""

from itertools import pairwise, product

import pytest
import sparse_study
import torch
from sparse_study import (
    BY_SPREAD,
    CONV_RIVALS,
    DENSE,
    DRY,
    FAR_RIVALS,
    POOLED_RIVALS,
    WIDE,
    WIDE_LEFT,
    compare_far,
    compare_pairs,
    compare_regrown,
    erk_sparsities,
    pooled_net,
    same_share,
    stored,
    strided_net,
)
from torch import nn

from mpcourse.pruning import apply_masks, count_nonzeros, layer_masks, random_scores
from mpcourse.training.in_memory import train
from mpcourse.training.nets import lenet_300_100


@pytest.fixture
def nets(monkeypatch):
    """What a study trains, in order: the net and the number of its digits."""
    trained = []

    def noted(model, digits, *how):
        trained.append((model, len(digits.shuffled.dataset)))
        train(model, digits, *how)

    monkeypatch.setattr(sparse_study, "train", noted)
    return trained


def test_a_seed_fixes_the_pairs_and_the_small_net_has_as_many_weights_as_are_left(run, data, nets):
    rows, again = (run(compare_pairs, data, 3, DRY) for _ in range(2))
    assert rows == again
    assert run(compare_pairs, data, 4, DRY) != rows
    ways = ["ticket", "redrawn", "trained", "dense"]
    assert [(row["rate"], row["way"]) for row in rows] == [*product(DRY.rates, ways)]
    assert {digits for _, digits in nets} == {3000}  # the last 1,000 of the 4,000 are held out
    for model in (nets[1][0], nets[2][0], nets[3][0], nets[4][0]):  # the first is the whole net
        assert _weights(model) == pytest.approx(0.05 * 266_200, rel=1e-3)


def test_a_sparse_file_stores_what_is_left_and_a_zero_where_a_byte_counts_no_further():
    model = nn.Linear(600, 4)
    assert stored(model) == 2400
    mask = torch.zeros(4, 600, dtype=torch.bool)
    mask[0, 255] = mask[0, 511] = True  # 255 zeros before each
    mask[1, 256] = True  # one zero more: a value of its own
    mask[2, 0] = mask[2, 513] = True  # as many as two stored zeros and none between
    apply_masks(model, {"": mask})
    assert stored(model) == 2 + 2 + 4


def _weights(model):
    return sum(left for left, _ in count_nonzeros(model).values())


@pytest.mark.parametrize("way", ["at once", "gradual", "same share"])
def test_every_way_ends_at_its_sparsity(way, run, data):
    torch.manual_seed(0)
    dense = lenet_300_100().to(data.place)
    model = run(sparse_study._pruned, dense, way, 0.9, data, 1, 0.05)
    counts = count_nonzeros(model).values()
    assert sum(left for left, _ in counts) == pytest.approx(0.1 * 266_200, rel=1e-2)


def test_far_pruned_nets_and_rivals_try_every_rate_and_never_train_on_held_out_digits(
    run, data, nets
):
    rates = 0.02, 0.1
    rows = run(compare_far, data, 3, DRY._replace(rates=rates))
    first, last = ("at once", "gradual"), ("same share", "unpruned")
    each = [(way, 300, 100) for way in first] + [("dense", *hidden) for hidden in FAR_RIVALS]
    each += [(way, 300, 100) for way in (*last, "gradual, pooled")]
    each += [("dense, pooled", *hidden) for hidden in POOLED_RIVALS]
    each += [("gradual, conv", *WIDE), *(("dense, conv", *hidden) for hidden in CONV_RIVALS)]
    assert [(row["way"], row["first"], row["second"]) for row in rows] == each * len(rates)
    assert [row["rate"] for row in rows[:: len(each)]] == list(rates)
    assert {digits for _, digits in nets} == {3000}
    assert any(row["held_out"] != row["accuracy"] for row in rows)
    pooled = [model for model, _ in nets if "pool" in dict(model.named_children())]
    assert _weights(pooled[1]) == pytest.approx(0.1 * 266_200, rel=1e-2)  # as many as of all pixels


def test_a_pooled_net_reads_the_mean_of_each_four_pixels_and_has_the_bytes_of_the_pruned_net():
    model, images = pooled_net(20, 20), torch.rand(2, 1, 28, 28)
    means = images.view(2, 14, 2, 14, 2).mean((2, 4)).flatten(1)
    torch.testing.assert_close(model[:3](images), model.fc1(means))
    # bytes of 99% zeros: values with a byte each, beginnings of rows, biases; the recording has the
    # zeros that are stored, too
    sparse = 5 * 2662 + 2 * 411 + 4 * 410
    for times, hidden in zip((0.5, 1, 2), POOLED_RIVALS, strict=True):
        size = sum(each.nbytes for each in pooled_net(*hidden).parameters())
        assert size == pytest.approx(times * sparse, rel=1e-2)


def test_nets_with_convolutions_have_as_many_bytes_and_twice_as_many():
    sparse = 5 * WIDE_LEFT + 2 * (sum(WIDE) + 11) + 4 * (sum(WIDE) + 10)
    for times, hidden in enumerate(CONV_RIVALS, start=1):
        size = sum(each.nbytes for each in strided_net(*hidden).parameters())
        assert size == pytest.approx(times * sparse, rel=2e-2)
    model = strided_net(*WIDE)
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    apply_masks(model, layer_masks(random_scores(model), 0.9))
    assert stored(model) == _weights(model)  # few zeros: a byte can count them


def test_each_stroke_takes_the_same_share_of_what_is_left():
    left = [1 - same_share(step, final=0.99, end=40) for step in range(0, 41, 10)]
    assert [b / a for a, b in pairwise(left)] == pytest.approx([0.01**0.25] * 4)
    assert same_share(50, final=0.99, end=40) == pytest.approx(0.99)


def test_regrowth_has_as_many_weights_in_every_way(run, data, nets):
    sizes = random_scores(lenet_300_100())
    sparsities = erk_sparsities(sizes, 0.05)
    left = {name: (1 - sparsities[name]) * sizes[name].numel() for name in sizes}
    assert sum(left.values()) == pytest.approx(0.05 * 266_200)
    ratios = {round(left[name] / sum(sizes[name].shape), 6) for name in sizes}
    assert len(ratios) == 1  # weights go with inputs plus outputs
    rows = run(compare_regrown, data, 3, DRY)
    ways = ["by gradient", "at random", "fixed", *DENSE, BY_SPREAD]
    assert [(row["rate"], row["way"]) for row in rows] == [*product([*DRY.rates, *DRY.large], ways)]
    assert {digits for _, digits in nets} == {3000}
    for row, (model, _) in zip(rows, nets, strict=True):
        share = 0.1 if row["way"] == "dense, twice" else 0.05
        # what grew in the last step may be zero still
        assert _weights(model) == pytest.approx(share * 266_200, rel=1e-2)


def test_growth_at_random_looks_at_random_numbers_in_place_of_gradients():
    model = lenet_300_100()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    sparse_study._any_gradient(model)()
    assert all(weight.grad.unique().numel() > 1 for weight in model.parameters())
