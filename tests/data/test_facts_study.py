"""The study of facts repeats itself, and its nets hold what they are said to."""

import facts_study
import pytest
import torch
from facts_study import DRY, MIXTURE, NETS, RATES, Facts, best_rate, compare, prepared, train_one

CLOCKED = {"step_ms", "times_mixture"}


@pytest.fixture(autouse=True)
def _fewer(monkeypatch):
    kept = (MIXTURE, "dense, same time, fewer facts")
    monkeypatch.setattr(facts_study, "NETS", {name: NETS[name] for name in kept})
    monkeypatch.setattr(facts_study, "TURNS", 1)


def seeded(rows):
    """What no clock has to do with."""
    return [{key: row[key] for key in row if key not in CLOCKED} for row in rows]


def test_a_seed_fixes_the_result_and_the_best_rate_goes_on(run, data):
    first = run(compare, data, 0, DRY)
    train_one.cache_clear()
    assert seeded(run(compare, data, 0, DRY)) == seeded(first)
    assert [row["rate"] for row in first] == [*RATES, *RATES]
    best = {row["net"]: row for row in first if row["best"]}
    for net, row in best.items():
        losses = [other[f"loss_{DRY}"] for other in first if other["net"] == net]
        assert row[f"loss_{DRY}"] == min(losses)
        assert best_rate(NETS[net], data.place, DRY) == row["rate"]
    later = run(compare, data, 1, DRY)
    assert [row["rate"] for row in later] == [best[row["net"]]["rate"] for row in later]


def test_parameters_and_facts_are_those_compared():
    count = {name: sum(p.numel() for p in Facts(net).parameters()) for name, net in NETS.items()}
    assert 0 <= count["dense, same parameters"] / count[MIXTURE] - 1 < 0.01
    assert NETS[MIXTURE].count ** 2 == 36864
    assert NETS["mixture, fewer facts"].count ** 2 == 9216


def test_all_pairs_are_facts_and_a_step_learns_from_them():
    model, (pairs, labels), step = prepared(NETS[MIXTURE], 0, RATES[0], "cpu")
    assert len(pairs.unique(dim=0)) == len(labels) == 36864
    before = model.head.weight.detach().clone()
    assert abs(step() - torch.tensor(64.0).log().item()) < 1
    assert not torch.equal(model.head.weight, before)
