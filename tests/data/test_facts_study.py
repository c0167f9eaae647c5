"""The study of facts repeats itself, and its nets hold what they are said to."""

import facts_study
import pytest
import torch
from facts_study import (
    DENSE,
    DRY,
    FALLING,
    FALLS,
    LONGER,
    MIXTURE,
    NETS,
    RATES,
    Facts,
    best_rate,
    compare,
    falling,
    prepared,
    train_one,
)

CLOCKED = {"step_ms", "times_mixture"}


@pytest.fixture(autouse=True)
def _fewer(monkeypatch):
    kept = (MIXTURE, DENSE, "dense, same time, fewer facts")
    monkeypatch.setattr(facts_study, "NETS", {name: NETS[name] for name in kept})
    monkeypatch.setattr(facts_study, "TURNS", 1)


def seeded(rows):
    """What no clock has to do with."""
    return [{key: row[key] for key in row if key not in CLOCKED} for row in rows]


def test_a_seed_fixes_the_result_and_the_best_rate_goes_on(run, data):
    first = run(compare, data, 0, DRY)
    train_one.cache_clear()
    assert seeded(run(compare, data, 0, DRY)) == seeded(first)
    assert [row["rate"] for row in first] == [*RATES, *RATES, *RATES]
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


def test_falling_rates_go_to_0_and_one_net_has_more_steps(run, data):
    first, later = (run(falling, data, seed, DRY) for seed in (0, 1))
    assert [row["rate"] for row in first] == [*FALLING, *FALLING, *FALLING, FALLING[1]]
    best = {row["net"]: row["rate"] for row in first if row["best"]}
    assert {row["net"]: row["rate"] for row in later} == best
    assert [row["steps"] for row in later] == [DRY, DRY, DRY, LONGER * DRY]
    kept = train_one(FALLS[DENSE][0], 1, best[DENSE], data.place, DRY)
    assert later[2]["loss_1"] == kept["loss_1"]
    assert later[2]["loss_12"] != kept["loss_12"]
    model, _, step = prepared(NETS[DENSE], 0, RATES[-1], "cpu", falls_over=1)
    step()
    before = model.head.weight.detach().clone()
    step()
    assert torch.equal(model.head.weight, before)


@pytest.mark.parametrize("name", [MIXTURE, f"{MIXTURE}, frozen router"])
def test_a_frozen_router_stays_as_it_was_drawn(name):
    model, _, step = prepared(FALLS[name][0], 0, RATES[0], "cpu")
    before = model.body.router.weight.detach().clone()
    step()
    assert torch.equal(model.body.router.weight, before) == (name != MIXTURE)
