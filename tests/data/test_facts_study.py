"""The study of facts repeats itself, and its nets are trained as they are said to be."""

import facts_study
import pytest
import torch
from facts_study import (
    COUNT,
    DENSE,
    DRY,
    MIXTURE,
    NETS,
    RATES,
    best_rate,
    compare,
    prepared,
    train_one,
)

FROZEN, WIDE = f"{MIXTURE}, frozen router", "dense, hidden size 1024"


@pytest.fixture(autouse=True)
def _fewer(monkeypatch):
    kept = {name: NETS[name] for name in (DENSE, WIDE)}
    monkeypatch.setattr(facts_study, "NETS", kept)


def test_a_seed_fixes_the_result_and_the_best_rate_goes_on(run, data):
    first = run(compare, data, 0, 2 * DRY)
    train_one.cache_clear()
    assert run(compare, data, 0, 2 * DRY) == first
    assert [row["rate"] for row in first] == [*RATES, *RATES]
    assert {row["steps"] for row in first} == {DRY, 2 * DRY}
    best = {row["net"]: row for row in first if row["best"]}
    for net, row in best.items():
        assert row["loss_12"] == min(each["loss_12"] for each in first if each["net"] == net)
        assert best_rate(NETS[net], data.place, 2 * DRY) == row["rate"]
    later = run(compare, data, 1, 2 * DRY)
    assert {row["net"]: row["rate"] for row in later} == {n: row["rate"] for n, row in best.items()}


def test_all_pairs_are_facts_and_a_step_learns_from_them():
    model, (pairs, labels), step = prepared(NETS[MIXTURE], 0, RATES[0], "cpu", 2)
    assert len(pairs.unique(dim=0)) == len(labels) == COUNT**2 == 36864
    before = model.head.weight.detach().clone()
    assert abs(step() - torch.tensor(64.0).log().item()) < 1
    assert not torch.equal(model.head.weight, before)


def test_a_rate_falls_to_0():
    model, _, step = prepared(NETS[DENSE], 0, RATES[-1], "cpu", 1)
    step()
    before = model.head.weight.detach().clone()
    step()
    assert torch.equal(model.head.weight, before)


def test_a_router_learns_unless_it_is_frozen():
    drawn = {name: prepared(NETS[name], 0, RATES[0], "cpu", 9) for name in (MIXTURE, FROZEN)}
    for name, (model, _, step) in drawn.items():
        before = model.body.router.weight.detach().clone()
        step()
        assert torch.equal(model.body.router.weight, before) == (name == FROZEN)
