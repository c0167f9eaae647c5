"""The study of page `a_transformer` repeats itself, and holds positions at 0 where it says so."""

import math

import pytest
import torch
import transformer_study
from transformer_study import DRY, character_losses, mix_with_counts, train_each_budget, train_one

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


def test_a_mixture_is_the_mean_of_two_probabilities():
    [device] = get_devices(1)
    data = Data(device.device)
    [row] = device.run(mix_with_counts, data, 2, DRY)
    nets = [train_one("learned", 20, seed, data.place)[0] for seed in (2, 0)]
    assert not mix_with_counts(data, 3, DRY)  # three seeds are enough for this one
    test = _test_text(data)[0]
    losses = [character_losses(net, test).flatten() for net in nets]
    counts = transformer_study.counted_losses(transformer_study.load_prose())["6-gram"]
    losses.append(counts[1 : len(losses[0]) + 1])  # the first character is never a target
    net, other, counts = ((-loss).exp() for loss in losses)
    wanted = {"net": net, "net_and_counts": (net + counts) / 2, "two_nets": (net + other) / 2}
    for name, probabilities in wanted.items():
        assert row[name] == pytest.approx(-probabilities.log().mean().item(), abs=1e-4)
    assert row["net"] == pytest.approx(transformer_study.text_loss(nets[0], test, 64), abs=1e-4)
    rows = character_losses(nets[0], test[:97], seen=32)
    assert rows.shape == (2, 32)  # targets 33 to 64, then 65 to 96
    assert rows.mean().item() < math.log(74)
