"""A vocabulary cut over ranks gives torch's own embedding and cross-entropy, however large."""

import pytest
import torch
from torch import nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import VocabParallelEmbedding, own_part, vocab_parallel_cross_entropy

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

    embedding = VocabParallelEmbedding(V, WIDTH, Place)
    for wrong in (-1, V):
        with pytest.raises(IndexError, match=f"numbers from 0 to 11; got {wrong} to {wrong}"):
            embedding(torch.tensor([wrong]))
        with pytest.raises(IndexError, match=f"numbers from 0 to 11; got {wrong} to {wrong}"):
            vocab_parallel_cross_entropy(torch.zeros(1, V // 2), torch.tensor([wrong]), Place)
    with pytest.raises(ValueError, match=r"got \(1, 6\) and \(2,\)"):
        vocab_parallel_cross_entropy(torch.zeros(1, 6), torch.tensor([0, 1]), Place)
    with pytest.raises(ValueError, match="2 ranks do not divide 7 tokens of the vocabulary"):
        VocabParallelEmbedding(7, WIDTH, Place)
