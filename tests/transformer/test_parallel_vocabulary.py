"""A vocabulary cut over ranks gives torch's own embedding and cross-entropy, however large."""

import pytest
import torch
from torch import nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import (
    VocabParallelEmbedding,
    own_part,
    reduce_from_ranks,
    vocab_parallel_cross_entropy,
)

V, N, T, WIDTH = 12, 3, 5, 4
RANKS = pytest.mark.parametrize("ranks", [1, 2, 4])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@RANKS
def test_the_loss_is_torchs_also_where_exponentials_overflow(ranks: int, scale: float):
    logits = (scale * torch.randn(N, T, V).double()).requires_grad_()
    targets = torch.randint(V, (N, T))
    wanted = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    wanted.backward()
    assert wanted.isfinite()
    assert logits.grad.abs().max() > 1e-3

    def program(group):
        columns = own_part(V, "tokens", group)
        part = logits.detach()[..., columns].clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(part, targets, group)
        loss.backward()
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(part.grad, logits.grad[..., columns], rtol=1e-10, atol=1e-12)

    ranks_in_threads(program, ranks)


def test_a_score_of_minus_infinity_is_no_token_and_no_nan():
    logits = torch.tensor([[float("-inf"), 0.0], [1.0, 2.0]]).double()
    wanted = nn.functional.cross_entropy(logits.repeat(1, 2), torch.tensor([3, 2]))
    targets = torch.tensor([3, 2])
    losses = ranks_in_threads(lambda g: vocab_parallel_cross_entropy(logits, targets, g), 2)
    assert [loss.item() for loss in losses] == pytest.approx([wanted.item()] * 2)


def test_what_does_not_fit_is_refused_before_anything_is_sent():
    class Place:  # without messages: whoever sends fails in another way
        rank, size = staticmethod(lambda: 0), staticmethod(lambda: 2)

    embedding = VocabParallelEmbedding.of(nn.Embedding(V, WIDTH), Place)
    for wrong in (-1, V):
        with pytest.raises(IndexError, match=f"numbers from 0 to 11; got {wrong} to {wrong}"):
            embedding(torch.tensor([wrong]))
        with pytest.raises(IndexError, match=f"numbers from 0 to 11; got {wrong} to {wrong}"):
            vocab_parallel_cross_entropy(torch.zeros(1, V // 2), torch.tensor([wrong]), Place)
    with pytest.raises(ValueError, match=r"got \(1, 6\) and \(2,\)"):
        vocab_parallel_cross_entropy(torch.zeros(1, 6), torch.tensor([0, 1]), Place)
    with pytest.raises(ValueError, match="2 ranks do not divide 7 tokens of the vocabulary"):
        VocabParallelEmbedding(7, WIDTH, Place)


TABLES = {
    "plain": ({}, torch.tensor([[0, 5, 11], [6, 6, 0]])),
    "padding first": ({"padding_idx": 0}, torch.arange(V)),
    "padding last": ({"padding_idx": -1}, torch.arange(V)),
    "padding of rank 1": ({"padding_idx": 6}, torch.tensor([6, 0, 6])),
    "int32": ({}, torch.arange(V, dtype=torch.int32)),
    "one token": ({}, torch.tensor(7)),
    "no token": ({}, torch.zeros(2, 0, dtype=torch.long)),
    "bfloat16": ({"dtype": torch.bfloat16}, torch.arange(V)),
    "frozen": ({"_freeze": True}, torch.arange(V)),
}


@pytest.mark.parametrize("case", TABLES)
def test_the_cut_table_does_what_an_embedding_does(case: str):
    options, tokens = TABLES[case]
    whole = nn.Embedding(V, WIDTH, **options).train(case != "plain")
    wanted = whole(tokens)
    if wanted.requires_grad:
        wanted.sum().backward()

    def program(group):
        part = VocabParallelEmbedding.of(whole, group)
        found = part(tokens)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert part.training == whole.training
        assert part.weight.requires_grad == whole.weight.requires_grad == found.requires_grad
        if found.requires_grad:
            found.sum().backward()
            rows = own_part(V, "tokens", group)
            torch.testing.assert_close(part.weight.grad, whole.weight.grad[rows], rtol=0, atol=0)

    ranks_in_threads(program, 2)


def test_a_row_that_is_not_a_number_stays_where_it_is():
    whole = nn.Embedding(V, WIDTH)
    whole.weight.data[0] = float("nan")
    found = ranks_in_threads(lambda g: VocabParallelEmbedding.of(whole, g)(torch.arange(V)), 2)
    assert found[0].isnan().any(1).tolist() == [True] + [False] * (V - 1)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"max_norm": 1.0}, "max_norm=1.0 cannot be cut"),
        ({"max_norm": 0.0}, "max_norm=0.0 cannot be cut"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq=True cannot be cut"),
        ({"sparse": True}, "sparse=True cannot be cut"),
    ],
)
def test_options_that_look_at_all_rows_are_refused(option: dict, problem: str):
    whole = nn.Embedding(V, WIDTH, **option)
    with pytest.raises(ValueError, match=f"an embedding with {problem} over ranks"):
        ranks_in_threads(lambda g: VocabParallelEmbedding.of(whole, g), 2)
    plain = VocabParallelEmbedding.of(nn.Embedding(V, WIDTH).requires_grad_(False), Alone)
    with pytest.raises(RuntimeError, match="is a part: reset the whole layer"):
        plain.reset_parameters()


class Alone:
    rank, size = staticmethod(lambda: 0), staticmethod(lambda: 1)


@pytest.mark.parametrize(
    ("shape", "dtype", "close"),
    [
        ((V,), torch.float64, 1e-12),
        ((T, V), torch.float32, 1e-5),
        ((2, N, T, V), torch.float64, 1e-12),
        ((N, T, V), torch.bfloat16, 0.05),
        ((N, T, V), torch.float16, 0.01),
        ((0, V), torch.float32, 0),
    ],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_the_loss_of_any_shape_and_dtype_is_torchs(shape, dtype, close, autocast):
    logits, targets = torch.randn(shape, dtype=dtype), torch.randint(V, shape[:-1])

    def lose(loss, given):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = loss(given)
        found.backward()
        return found

    whole = logits.clone().requires_grad_()
    flat = (lambda x: x.reshape(-1, V)), targets.flatten()
    wanted = lose(lambda x: nn.functional.cross_entropy(flat[0](x), flat[1]), whole)

    def program(group):
        columns = own_part(V, "tokens", group)
        part = logits[..., columns].clone().requires_grad_()
        found = lose(lambda x: vocab_parallel_cross_entropy(x, targets, group), part)
        torch.testing.assert_close(found, wanted, rtol=0, atol=close, equal_nan=True)
        torch.testing.assert_close(part.grad, whole.grad[..., columns], rtol=0, atol=close)

    ranks_in_threads(program, 2)


def test_the_second_derivative_of_the_loss_is_torchs():
    logits, targets = torch.randn(T, V).double(), torch.randint(V, (T,))
    away = torch.randn(T, V).double()
    hessian = torch.autograd.functional.hvp(
        lambda x: nn.functional.cross_entropy(x, targets), logits, away
    )[1]

    def program(group):
        own = own_part(V, "tokens", group)
        part = logits[:, own].clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(part, targets, group)
        (gradient,) = torch.autograd.grad(loss, part, create_graph=True)
        along = reduce_from_ranks((gradient * away[:, own]).sum(), group)
        (found,) = torch.autograd.grad(along, part)
        torch.testing.assert_close(found, hessian[:, own], rtol=0, atol=1e-12)

    ranks_in_threads(program, 2)


@pytest.mark.parametrize(
    ("targets", "problem"),
    [
        (torch.tensor([0, -100]), r"numbers from 0 to 11; got -100 to 0"),
        (torch.tensor([0.5, 0.5]), "Expected dtype int32/int64 for index"),
        (torch.zeros(2, V), r"got \(2, 12\) and \(2, 12\)"),
    ],
)
def test_what_torchs_loss_takes_and_this_does_not_is_refused(targets, problem):
    with pytest.raises((ValueError, IndexError, RuntimeError), match=problem):
        vocab_parallel_cross_entropy(torch.zeros(2, V), targets, Alone)
