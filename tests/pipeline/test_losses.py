"""Losses of micro-batches add up to that of the mini-batch, or are refused."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpcourse.pipeline.microbatch import microbatch_shares

SIZES = [3, 3, 1]
TARGETS = torch.tensor([0, 1, 2, 0, 1, 2, 0])


@pytest.mark.parametrize(
    ("loss_fn", "shares"),
    [
        (nn.CrossEntropyLoss(), [3 / 7, 3 / 7, 1 / 7]),
        (nn.CrossEntropyLoss(reduction="sum"), [1, 1, 1]),
        (nn.MSELoss(), [3 / 7, 3 / 7, 1 / 7]),
        (F.cross_entropy, [3 / 7, 3 / 7, 1 / 7]),
        (F.mse_loss, [3 / 7, 3 / 7, 1 / 7]),
        (partial(F.cross_entropy, label_smoothing=0.1), [3 / 7, 3 / 7, 1 / 7]),
        (partial(F.cross_entropy, weight=torch.ones(3), reduction="sum"), [1, 1, 1]),
        (partial(nn.CrossEntropyLoss(reduction="sum")), [1, 1, 1]),
        (nn.BCELoss(weight=torch.ones(3)), [3 / 7, 3 / 7, 1 / 7]),  # divides by the count
    ],
)
def test_the_reduction_is_read_from_the_loss(loss_fn, shares):
    assert microbatch_shares(loss_fn, TARGETS, SIZES) == pytest.approx(shares)


def test_the_weighted_losses_are_the_loss_of_the_mini_batch():
    logits = torch.randn(7, 3, dtype=torch.double)
    loss_fn = nn.CrossEntropyLoss()
    pieces = zip(logits.split(SIZES), TARGETS.split(SIZES), strict=True)
    shares = microbatch_shares(loss_fn, TARGETS, SIZES)
    parts = [share * loss_fn(*piece) for share, piece in zip(shares, pieces, strict=True)]
    torch.testing.assert_close(sum(parts), loss_fn(logits, TARGETS))


def test_the_argument_wins():
    assert microbatch_shares(lambda a, b: a, TARGETS, SIZES, reduction="sum") == [1, 1, 1]
    assert microbatch_shares(nn.MSELoss(), TARGETS, SIZES, shares=[1, 2, 3]) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("loss_fn", "targets", "words"),
    [
        (lambda a, b: a, TARGETS, 'got None; pass reduction="mean"'),
        (nn.CrossEntropyLoss(reduction="none"), TARGETS, "got 'none'"),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), TARGETS, "class weights"),
        (nn.NLLLoss(weight=torch.ones(3)), TARGETS, "class weights"),
        (nn.CrossEntropyLoss(ignore_index=2), TARGETS, "ignore_index=2"),
        (F.cross_entropy, torch.tensor([-100] + [0] * 6), "ignore_index=-100"),
        (F.nll_loss, torch.tensor([-100] + [0] * 6), "ignore_index=-100"),
        (partial(F.cross_entropy, weight=torch.ones(3)), TARGETS, "class weights"),
        (partial(F.nll_loss, weight=torch.ones(3)), TARGETS, "class weights"),
        (partial(F.cross_entropy, ignore_index=2), TARGETS, "ignore_index=2"),
        (partial(partial(F.nll_loss, ignore_index=1), reduction="mean"), TARGETS, "ignore_index=1"),
        (partial(nn.CrossEntropyLoss(ignore_index=2)), TARGETS, "ignore_index=2"),
        (partial(nn.CrossEntropyLoss(weight=torch.ones(3))), TARGETS, "class weights"),
    ],
)
def test_a_mean_over_something_else_is_refused(loss_fn, targets, words):
    with pytest.raises(ValueError, match=words):
        microbatch_shares(loss_fn, targets, SIZES)


def test_a_share_for_each_micro_batch():
    with pytest.raises(ValueError, match="3 micro-batches need a share each; got 2"):
        microbatch_shares(nn.MSELoss(), TARGETS, SIZES, shares=[0.5, 0.5])


def test_probabilities_are_no_class_that_could_be_ignored():
    probabilities = torch.eye(3)[TARGETS]  # full of zeros, the number of the ignored class
    loss_fn = nn.CrossEntropyLoss(ignore_index=0)
    assert microbatch_shares(loss_fn, probabilities, SIZES) == [3 / 7, 3 / 7, 1 / 7]
    with pytest.raises(ValueError, match="ignore_index=0"):
        microbatch_shares(loss_fn, TARGETS, SIZES)
