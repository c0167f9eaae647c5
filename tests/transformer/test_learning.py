"""The text, what counting achieves, training, and tied copies."""

import contextlib
import math

import pytest
import torch
from torch import nn

from mpcourse.devices import get_devices
from mpcourse.pipeline import Pipeline
from mpcourse.splitting import split_sequential
from mpcourse.transformer import (
    Decoder,
    Text,
    counted_losses,
    load_prose,
    next_token_loss,
    sum_tied_gradients,
    text_loss,
    train_decoder,
    unsplit_step,
    with_two_copies,
)


def small(**more) -> Decoder:
    return Decoder(11, 16, 2, layers=3, context=8, **more).double()


def test_the_prose_is_cut_into_two_and_comes_back():
    text = load_prose()
    whole = text.decode(text.train) + text.decode(text.test)
    assert len(whole) > 50_000
    assert "pipeline" in whole
    assert 0.09 < len(text.test) / len(whole) < 0.11
    assert text.decode(text.encode("two devices")) == "two devices"
    with pytest.raises(ValueError, match="'€' is not among the"):
        text.encode("2 €")


def test_counting_gives_the_losses_of_a_small_case():
    text = Text("ab", torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1]))
    losses = counted_losses(text)
    left, shared = 2.1, 2 * 0.9 / 4  # of a's three; a discount for a and b, a half of it each
    assert losses["uniform"].tolist() == pytest.approx([math.log(2)] * 2)
    a, b = left / 4 + shared / 2, 0.1 / 4 + shared / 2
    assert losses["unigram"].exp().tolist() == pytest.approx([1 / a, 1 / b])
    # in the shorter model a and b have stood behind one different character each: a half
    ab = (0.1 + 2 * 0.9 * 0.5) / 3  # a was followed three times, once by b, by two different ones
    assert losses["bigram"].exp().tolist() == pytest.approx([2, 1 / ab])
    assert list(losses) == ["uniform", "unigram", "bigram"]  # as long as the text
    unknown = counted_losses(Text("ab", torch.tensor([0, 0, 0, 1]), torch.tensor([1, 0])))
    assert unknown["bigram"][1].exp() == pytest.approx(2)  # nothing has followed b


def test_counted_probabilities_sum_to_one_and_a_longer_past_helps():
    text = load_prose()
    few = text.train[:5000]
    past = few[500:510]  # which has been followed
    nexts = [torch.cat([past, torch.tensor([token])]) for token in range(len(text.characters))]
    found = [counted_losses(Text(text.characters, few, test)) for test in nexts]
    for name in found[0]:
        assert sum((-losses[name][-1]).exp() for losses in found) == pytest.approx(1)
    order = ["uniform", "unigram", "bigram", "trigram", "4-gram", "5-gram", "6-gram", "7-gram"]
    whole = counted_losses(text)
    means = [losses.mean() for losses in whole.values()]
    assert list(whole) == order
    assert means == sorted(means, reverse=True)
    assert means[-1] < 1.40  # Chen and Goodman's recipe with one discount, computed apart


def trained(seed: int) -> tuple[Decoder, list[float]]:
    torch.manual_seed(0)  # the same start: `seed` chooses the windows alone
    model = Decoder(4, 16, 2, layers=1, context=8)
    tokens = torch.tensor([0, 1, 2, 3]).repeat(50)
    step = unsplit_step(model)
    options = {"steps": 60, "context": 8, "batch_size": 8, "rate": 1e-2, "seed": seed}
    return model, train_decoder(step, list(model.parameters()), tokens, **options)


def test_training_learns_what_repeats_and_the_seed_fixes_it():
    model, losses = trained(0)
    assert losses[0] == pytest.approx(math.log(4), abs=0.1)
    assert losses[-1] < 0.3
    assert trained(0)[1] == losses
    assert trained(1)[1] != losses
    tokens = torch.tensor([0, 1, 2, 3]).repeat(10)
    assert text_loss(model, tokens, 8) == pytest.approx(losses[-1], abs=0.2)


@pytest.mark.parametrize("right", [True, False])
def test_dropout_is_off_and_every_mode_comes_back_also_after_an_error(right: bool):
    model = small(dropout=0.5)
    model.blocks[1].eval()
    model.blocks[2].mlp.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    tokens = torch.randint(11, (1, 9)) if right else torch.full((1, 9), 11)
    with contextlib.nullcontext() if right else pytest.raises(IndexError):
        assert text_loss(model, tokens[0], 8) == text_loss(model, tokens[0], 8)
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_a_text_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match="8 tokens hold no window of 8 and the next token"):
        text_loss(small(), torch.zeros(8, dtype=torch.long), 8)
    with pytest.raises(ValueError, match="3 tokens hold no window of 8 and the next token"):
        train_decoder(print, [], torch.zeros(3, dtype=torch.long), steps=1, context=8)


SCHEDULES = [("naive", 2), ("gpipe", 2), ("1f1b", 2), ("interleaved", 4), ("zb-h1", 2), ("zb-v", 4)]


@pytest.mark.parametrize(("schedule", "stages"), SCHEDULES)
def test_a_pipeline_takes_the_steps_of_the_tied_model(schedule: str, stages: int):
    model = small(tied=True)
    row = with_two_copies(model)
    pipeline = Pipeline(split_sequential(row, stages), get_devices(2), schedule, num_microbatches=4)
    first, last = row[0].tokens.weight, row[-1].output.weight

    def step(inputs, targets):
        loss = pipeline.step(inputs, targets, next_token_loss)
        sum_tied_gradients(first, last)
        return loss

    tokens = torch.randint(11, (100,))
    options = {"steps": 3, "context": 8, "batch_size": 4}
    cut = train_decoder(step, list(row.parameters()), tokens, **options)
    whole = train_decoder(unsplit_step(model), list(model.parameters()), tokens, **options)
    assert cut == pytest.approx(whole, abs=1e-12)
    assert torch.equal(first, last)
    assert (first.cpu() - model.embedding.tokens.weight).abs().max() < 1e-9


def test_two_copies_are_frozen_if_the_tied_tensor_is():
    model = small(tied=True)
    model.embedding.requires_grad_(False)
    assert not with_two_copies(model)[-1].output.weight.requires_grad


def test_gradients_that_are_not_there_are_refused():
    first, last = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="the first copy has no gradient"):
        sum_tied_gradients(first, last)
    first.grad, last.grad = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    sum_tied_gradients(first, last)
    assert first.grad.tolist() == last.grad.tolist() == [11.0, 22.0]
    with pytest.raises(ValueError, match="copies of one tensor have one shape"):
        sum_tied_gradients(first, nn.Parameter(torch.ones(3)))
