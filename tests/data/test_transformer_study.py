"""The study of page `a_transformer` repeats itself, and holds positions at 0 where it says so."""

import pytest
import torch
import transformer_study
from transformer_study import DRY, train_each_budget

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
    first, again = (device.run(train_each_budget, data, 3, DRY) for _ in range(2))
    assert first == again
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
