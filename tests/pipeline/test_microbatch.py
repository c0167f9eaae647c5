"""Micro-batches have the promised sizes, and they and their losses are the mini-batch."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from holders import HOLDERS
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from mpcourse.pipeline.microbatch import (
    merge_microbatches,
    microbatch_shares,
    microbatch_sizes,
    num_samples_of,
    split_minibatch,
)


@pytest.mark.parametrize(
    ("samples", "count", "sizes"),
    [(7, 3, [3, 2, 2]), (8, 4, [2, 2, 2, 2]), (3, 5, [1, 1, 1]), (1, 1, [1]), (5, 1, [5])],
)
def test_a_count_gives_sizes_that_differ_by_at_most_one(samples, count, sizes):
    assert microbatch_sizes(samples, num_microbatches=count) == sizes
    assert [len(t) for t in torch.zeros(samples).tensor_split(min(count, samples))] == sizes


@pytest.mark.parametrize(
    ("samples", "size", "sizes"), [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (2, 5, [2]), (4, 1, [1] * 4)]
)
def test_a_size_leaves_a_shorter_last_one(samples, size, sizes):
    assert microbatch_sizes(samples, microbatch_size=size) == sizes
    assert [len(t) for t in torch.zeros(samples).split(size)] == sizes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_samples": 0, "num_microbatches": 2}, "the mini-batch is empty"),
        ({}, "exactly one"),
        ({"num_microbatches": 2, "microbatch_size": 2}, "exactly one"),
        ({"num_microbatches": 0}, "num_microbatches is a whole number from 1; got 0"),
        ({"microbatch_size": -1}, "microbatch_size is a whole number from 1; got -1"),
        ({"num_microbatches": 2.0}, "got 2.0"),
        ({"microbatch_size": True}, "got True"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        microbatch_sizes(**{"num_samples": 4} | arguments)


@given(st.integers(1, 20), st.integers(1, 25), st.booleans())
def test_split_and_merge_give_the_mini_batch_back(samples, number, by_count):
    name = "num_microbatches" if by_count else "microbatch_size"
    batch = {"x": torch.arange(samples * 2).reshape(samples, 2), "y": (torch.arange(samples), "n")}
    pieces = split_minibatch(batch, microbatch_sizes(samples, **{name: number}))
    merged = merge_microbatches(pieces)
    assert torch.equal(merged["x"], batch["x"])
    assert torch.equal(merged["y"][0], batch["y"][0])
    assert merged["y"][1] == "n"


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (("text", 1), "holds no tensor"),
        ((torch.zeros(2), torch.tensor(1.0)), "0 dimensions"),
        ((torch.zeros(2), torch.zeros(3)), r"different numbers of samples: \[2, 3\]"),
    ],
)
def test_what_cannot_be_cut_is_refused(batch, words):
    with pytest.raises(ValueError, match=words):
        num_samples_of(batch)


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_what_would_reach_every_micro_batch_whole_is_refused(make):
    for batch in (make(torch.zeros(2, 1)), {"x": torch.zeros(2), "more": make(torch.zeros(2, 1))}):
        with pytest.raises(TypeError, match=r"a \w+ is not taken apart: (pass its|pad it)"):
            num_samples_of(batch)
    with pytest.raises(TypeError, match=r"a \w+ is not taken apart: (pass its|pad it)"):
        merge_microbatches([make(torch.zeros(2, 1))] * 2)


def test_what_holds_no_tensor_reaches_every_micro_batch():
    for beside in (SimpleNamespace(scale=2.0), {1, 2}, nn.Linear(2, 2), torch.Size([2])):
        assert num_samples_of((torch.zeros(3), beside)) == 3


def test_losses_become_a_vector_and_what_is_no_tensor_stays_where_all_agree_or_is_refused():
    assert merge_microbatches([torch.tensor(1.0), torch.tensor(2.0)]).tolist() == [1.0, 2.0]
    assert merge_microbatches([{"n": 3, "no": None}] * 2) == {"n": 3, "no": None}
    with pytest.raises(ValueError, match=r"return \[0.5, 0.25\]: make tensors of them"):
        merge_microbatches([(torch.zeros(1), 0.5), (torch.zeros(1), 0.25)])


def test_outputs_of_different_structure_are_refused():
    with pytest.raises(ValueError, match="differ in structure"):
        merge_microbatches([torch.zeros(1), (torch.zeros(1),)])
    with pytest.raises(ValueError, match="outputs is empty"):
        merge_microbatches([])


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


def test_the_argument_wins():
    assert microbatch_shares(lambda a, b: a, TARGETS, SIZES, reduction="sum") == [1, 1, 1]
    assert microbatch_shares(nn.MSELoss(), TARGETS, SIZES, shares=[1, 2, 3]) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_that_says_otherwise_is_refused(reduction):
    for loss_fn in (nn.MSELoss(reduction=reduction), partial(F.mse_loss, reduction=reduction)):
        other = {"mean": "sum", "sum": "mean"}[reduction]
        assert microbatch_shares(loss_fn, TARGETS, SIZES, reduction=reduction)
        with pytest.raises(ValueError, match=f"by '{reduction}', as it says itself; got '{other}'"):
            microbatch_shares(loss_fn, TARGETS, SIZES, reduction=other)
    assert microbatch_shares(nn.KLDivLoss(reduction="batchmean"), TARGETS, SIZES, reduction="mean")


@pytest.mark.parametrize(
    ("loss_fn", "targets", "words"),
    [
        (lambda a, b: a, TARGETS, 'got None; pass reduction="mean"'),
        (nn.CrossEntropyLoss(reduction="none"), TARGETS, "got 'none'"),
        (nn.NLLLoss(weight=torch.ones(3)), TARGETS, "class weights"),
        (nn.CrossEntropyLoss(ignore_index=2), TARGETS, "ignore_index=2"),
        (F.cross_entropy, torch.tensor([-100] + [0] * 6), "ignore_index=-100"),
        (partial(F.nll_loss, weight=torch.ones(3)), TARGETS, "class weights"),
        (partial(F.cross_entropy, ignore_index=2), TARGETS, "ignore_index=2"),
        (partial(partial(F.nll_loss, ignore_index=1), reduction="mean"), TARGETS, "ignore_index=1"),
        (partial(nn.CrossEntropyLoss(ignore_index=2)), TARGETS, "ignore_index=2"),
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
