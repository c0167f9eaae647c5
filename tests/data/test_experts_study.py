"""The study of page `experts` repeats itself, and its nets cost and hold what they are said to."""

import experts_study
import pytest
from experts_study import (
    DRY,
    FINALISTS,
    NETS,
    RATES,
    best_rate,
    build,
    compare,
    found_with,
    train_one,
    try_rates,
)
from torch import nn

from mpcourse.transformer import Mixture, load_prose, text_loss


@pytest.fixture(autouse=True)
def _fewer(monkeypatch):
    kept = ("dense, same cost", "mixture")
    monkeypatch.setattr(experts_study, "NETS", {name: NETS[name] for name in kept})
    monkeypatch.setattr(experts_study, "RATES", RATES[-2:])


def test_a_seed_fixes_the_result_and_each_net_has_its_best_rate(run, data):
    tried = run(try_rates, data, 0, DRY)
    first = run(compare, data, 0, DRY)
    found_with.cache_clear()
    assert run(compare, data, 0, DRY) == first
    for row in first:
        losses = {r["rate"]: r["validation_loss"] for r in tried if r["net"] == row["net"]}
        assert len(losses) == 2
        assert row["rate"] == min(losses, key=losses.get)
        assert best_rate(NETS[row["net"]], data.place, DRY) == row["rate"]
        later = [r["rate"] for r in run(try_rates, data, 4, DRY) if r["net"] == row["net"]]
        assert later == sorted(losses, key=losses.get)[:FINALISTS]


def test_a_rate_is_judged_on_text_that_is_neither_trained_on_nor_the_test(monkeypatch):
    text, real, seen = load_prose(), experts_study.train_decoder, []

    def train(step, parameters, tokens, **rest):
        seen.append(tokens)
        return real(step, parameters, tokens, **rest)

    monkeypatch.setattr(experts_study, "train_decoder", train)
    monkeypatch.setattr(
        experts_study, "text_loss", lambda *given: seen.append(given[1]) or text_loss(*given)
    )
    found_with.cache_clear()
    found_with(NETS["mixture"], 0.05, 0, "cpu", 1)
    learnt, judged = seen
    assert len(learnt) + len(judged) == len(text.train)
    assert (judged == text.train[len(learnt) :]).all()


def test_costs_and_parameters_are_those_compared():
    counted = {}
    for name, net in NETS.items():
        module = build(net, 74, 0).blocks[0].mlp
        counted[name] = sum(p.numel() for p in module.parameters())
        if isinstance(module, Mixture):
            linear = [module.router, *module.experts[0]]
        else:
            linear = [*module]
        work = sum(layer.weight.numel() for layer in linear if isinstance(layer, nn.Linear))
        assert work == net.multiply_adds
    same = {net.multiply_adds for name, net in NETS.items() if net.hidden < 300}
    assert len(same) == 1
    assert 0 <= counted["dense, same parameters"] / counted["mixture"] - 1 < 0.01


def moved(name):
    """How far router and first expert are from where they were drawn."""
    text, net = load_prose(), NETS[name]
    vocabulary = len(text.characters)
    drawn = build(net, vocabulary, 0).blocks[0].mlp
    model, _ = train_one(net, 0.05, 0, text.train, vocabulary, 2)
    trained = model.blocks[0].mlp
    pairs = (trained.router, drawn.router), (trained.experts[0][0], drawn.experts[0][0])
    return [(mine.weight - start.weight).norm().item() for mine, start in pairs]


def test_a_router_learns_unless_it_is_frozen():
    assert min(moved("mixture")) > 0
    frozen, learnt = moved("mixture, frozen router")
    assert frozen == 0 < learnt
