"""The study of page `a_transformer` repeats itself, and holds positions at 0 where it says so."""

import pytest
import torch
import transformer_study
from transformer_study import (
    CONTEXT,
    COUNT,
    DRY,
    SHARE,
    character_losses,
    last_part,
    learn_from_less,
    mix_with_counts,
    train_each_budget,
    train_one,
)

from mpcourse.devices.devices import get_devices
from mpcourse.training.in_memory import Data


def test_a_seed_fixes_the_result_and_each_budget_has_a_row(monkeypatch):
    trained = []
    real = transformer_study.text_loss
    monkeypatch.setattr(
        "transformer_study.text_loss",
        lambda model, *rest: trained.append(model) or real(model, *rest),
    )
    [device] = get_devices(1)
    data = Data(device.device)
    first = device.run(train_each_budget, data, 3, DRY)
    train_one.cache_clear()
    assert device.run(train_each_budget, data, 3, DRY) == first
    assert [(row["positions"], row["steps"]) for row in first] == [
        ("learned", 20),
        ("held at 0", 20),
    ]
    learned, held = (model.embedding.positions.weight for model in trained[:2])
    assert learned.abs().max() > 0
    assert torch.equal(held, torch.zeros_like(held))
    assert first[0]["test_loss"] == pytest.approx(real(trained[0], *_test_text(data)), abs=1e-4)


def _test_text(data: Data) -> tuple[torch.Tensor, int]:
    return transformer_study.load_prose().test.to(data.place), transformer_study.CONTEXT


def test_a_mixture_is_the_mean_of_two_probabilities_of_the_same_letters():
    [device] = get_devices(1)
    data = Data(device.device)
    [row] = device.run(mix_with_counts, data, 1, DRY)
    assert not mix_with_counts(data, 2, DRY)  # two seeds are enough for this one
    net, test = train_one("learned", 20, 1, data.place)[0], _test_text(data)[0]
    long = []  # the loss of one letter after its past alone
    for at in (64, 79, 95):
        past = test[(at - 1) // 32 * 32 - 32 : at]
        long.append(-net(past[None])[0, -1].log_softmax(-1)[test[at]].item())
    found = character_losses(net, test, CONTEXT, seen=32)
    assert [found[at - 33].item() for at in (64, 79, 95)] == pytest.approx(long, abs=1e-5)
    counts = transformer_study.counted_losses(transformer_study.load_prose())[COUNT]
    counts = counts[33 : 33 + len(found)]
    half = -(((-found).exp() + (-counts).exp()) / 2).log()
    wanted = {"net": found, "counts": counts, "net_and_counts": half}
    for name, losses in wanted.items():
        assert row[name] == pytest.approx(losses.mean().item(), abs=1e-4)


def test_net_and_counts_learn_from_the_same_part_and_are_judged_on_the_same_rest():
    [device] = get_devices(1)
    data = Data(device.device)
    [row] = device.run(learn_from_less, data, 1, DRY)
    assert not learn_from_less(data, 2, DRY)
    text, part = transformer_study.load_prose(), last_part(SHARE)
    assert torch.equal(part.test, text.test)
    assert torch.equal(part.train, text.train[-(len(text.train) // SHARE) :])
    assert row["characters"] == len(part.train)
    net = train_one("learned", 20, 1, data.place, SHARE)[0]
    assert row["test_loss"] == pytest.approx(
        transformer_study.text_loss(net, text.test, CONTEXT), abs=1e-4
    )
    counts = transformer_study.counted_losses(part)[COUNT].mean().item()
    assert row["counts"] == pytest.approx(counts, abs=1e-4)
