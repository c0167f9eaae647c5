"""The study of page `a_transformer` repeats itself, and holds positions at 0 where it says so."""

import pytest
import torch
import transformer_study as study
from torch import nn

from mpcourse.training.in_memory import Data


def test_a_seed_fixes_the_result_and_each_budget_has_a_row(run, data, monkeypatch):
    trained = []
    real = study.text_loss
    noted = lambda model, *rest: trained.append(model) or real(model, *rest)  # noqa: E731
    monkeypatch.setattr(study, "text_loss", noted)
    first = run(study.train_each_budget, data, 3, study.DRY)
    study.train_one.cache_clear()
    assert run(study.train_each_budget, data, 3, study.DRY) == first
    rows = [(row["positions"], row["steps"]) for row in first]
    assert rows == [("learned", 20), ("held at 0", 20)]
    learned, held = (model.embedding.positions.weight for model in trained[:2])
    assert learned.abs().max() > 0
    assert torch.equal(held, torch.zeros_like(held))
    assert first[0]["test_loss"] == pytest.approx(real(trained[0], *_test_text(data)), abs=1e-4)


def _test_text(data: Data) -> tuple[torch.Tensor, int]:
    return study.load_prose().test.to(data.place), study.CONTEXT


def test_a_mixture_is_the_mean_of_two_probabilities_of_the_same_letters(run, data):
    [row] = run(study.mix_with_counts, data, 1, study.DRY)
    assert not study.mix_with_counts(data, 2, study.DRY)  # two seeds are enough for this one
    net, test = study.train_one("learned", 20, 1, data.place)[0], _test_text(data)[0]
    long = []  # the loss of one letter after its past alone
    for at in (64, 79, 95):
        past = test[(at - 1) // 32 * 32 - 32 : at]
        long.append(-net(past[None])[0, -1].log_softmax(-1)[test[at]].item())
    found = study.character_losses(net, test, study.CONTEXT, seen=32)
    assert [found[at - 33].item() for at in (64, 79, 95)] == pytest.approx(long, abs=1e-5)
    counts = study.counted_losses(study.load_prose())[study.COUNT]
    counts = counts[33 : 33 + len(found)]
    seen = [test[at - 6 : at] for at in range(33, 33 + len(found))]  # as a 7-gram sees it
    logits = net(torch.stack(seen)).detach().double()[:, -1].cpu()
    short = nn.functional.cross_entropy(logits, test[33:].cpu()[: len(found)], reduction="none")
    wanted = {"net": found, "counts": counts, "short": short}
    for name in ("net", "short"):
        wanted[f"{name}_and_counts"] = -(((-wanted[name]).exp() + (-counts).exp()) / 2).log()
    for name, losses in wanted.items():
        assert row[name] == pytest.approx(losses.mean().item(), abs=1e-4)
