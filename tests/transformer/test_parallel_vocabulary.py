"""A vocabulary cut over ranks gives torch's own embedding and cross-entropy, however large."""

import pytest
import torch
from cut_decoders import Place
from torch import nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import VocabParallelEmbedding, own_part, vocab_parallel_cross_entropy

V, N, T, WIDTH = 12, 3, 5, 4


def test_a_score_of_minus_infinity_is_no_token_and_no_nan():
    logits = torch.tensor([[float("-inf"), 0.0], [1.0, 2.0]]).double()
    wanted = nn.functional.cross_entropy(logits.repeat(1, 2), torch.tensor([3, 2]))
    targets = torch.tensor([3, 2])
    losses = ranks_in_threads(lambda g: vocab_parallel_cross_entropy(logits, targets, g), 2)
    assert [loss.item() for loss in losses] == pytest.approx([wanted.item()] * 2)


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
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq=True cannot be cut"),
        ({"sparse": True}, "sparse=True cannot be cut"),
    ],
)
def test_options_that_look_at_all_rows_are_refused(option: dict, problem: str):
    whole = nn.Embedding(V, WIDTH, **option)
    with pytest.raises(ValueError, match=f"an embedding with {problem} over ranks"):
        VocabParallelEmbedding.of(whole, Place(0, 2))


@pytest.mark.parametrize(
    ("shape", "dtype", "scale", "close"),
    [
        ((V,), torch.float64, 1, 1e-12),
        ((T, V), torch.float32, 1, 1e-5),
        ((2, N, T, V), torch.float64, 1, 1e-12),
        ((N, T, V), torch.float64, 1000, 1e-12),  # exponentials overflow
        ((N, T, V), torch.bfloat16, 1, 0.05),
        ((N, T, V), torch.float16, 1, 0.01),
        ((0, V), torch.float32, 1, 0),
    ],
)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_loss_of_any_shape_and_dtype_is_torchs(ranks, autocast, shape, dtype, scale, close):
    logits, targets = scale * torch.randn(shape, dtype=dtype), torch.randint(V, shape[:-1])

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

    ranks_in_threads(program, ranks)


@pytest.mark.parametrize(
    ("shape", "targets", "problem"),
    [
        ((2, V // 2), [0, -100], "numbers from 0 to 11; got -100 to 0"),
        ((1, V // 2), [V], "numbers from 0 to 11; got 12 to 12"),
        ((1, V // 2), [0, 1], r"got \(1, 6\) and \(2,\)"),
        ((2, V), [[0.0] * V] * 2, r"got \(2, 12\) and \(2, 12\)"),
        ((2, V), [0.5, 0.5], "Expected dtype int32/int64 for index"),
    ],
)
def test_targets_that_do_not_fit_are_refused_before_anything_is_sent(shape, targets, problem):
    place = Place(0, V // shape[-1])
    with pytest.raises((ValueError, IndexError, RuntimeError), match=problem):
        vocab_parallel_cross_entropy(torch.zeros(shape), torch.tensor(targets), place)


@pytest.mark.parametrize("wrong", [-1, V])
def test_tokens_outside_the_vocabulary_are_refused_before_anything_is_sent(wrong: int):
    embedding = VocabParallelEmbedding.of(nn.Embedding(V, WIDTH), Place(0, 2))
    with pytest.raises(IndexError, match=f"numbers from 0 to 11; got {wrong} to {wrong}"):
        embedding(torch.tensor([wrong]))
