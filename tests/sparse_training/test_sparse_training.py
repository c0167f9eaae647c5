"""Schedules, kept zeros, tickets, regrowth: hand-worked examples and closed forms."""

import copy
import itertools
import math
import pickle
from functools import partial

import pytest
import torch
from pruned import normed_net
from torch import nn

from mpcourse.devices.devices import get_devices
from mpcourse.pruning import (
    apply_masks,
    count_nonzeros,
    global_masks,
    latencies,
    layer_masks,
    magnitude,
    make_permanent,
    masks_of,
    multiply_adds,
    random_scores,
    remove_channels,
    sparsity_of,
    to_sparse,
    zero_channels,
)
from mpcourse.sparse_training import (
    GradualPruner,
    KeepMasks,
    Regrowth,
    cosine_share,
    cubic_sparsity,
    rewind,
    snapshot,
    zero_pruned,
)
from mpcourse.sparse_training.regrowth import _dropped, _grown
from mpcourse.training.loop import train_epoch

BATCHES = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(6)]
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "decay": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int = 1) -> None:
    for _ in range(epochs):
        train_epoch(model, BATCHES, optimizer, nn.CrossEntropyLoss())


def sparsity(model: nn.Module) -> float:
    counts = count_nonzeros(model).values()
    return 1 - sum(kept for kept, _ in counts) / sum(count for _, count in counts)


def count_returned(model: nn.Module, masks: dict[str, torch.Tensor]) -> int:
    layers = dict(model.named_modules())
    return sum(int(layers[name].weight[~mask].count_nonzero()) for name, mask in masks.items())


# Gradual pruning


def test_the_schedules_of_a_table():
    cubic = partial(cubic_sparsity, initial=0.2, final=0.8, begin=10, end=30)
    found = [cubic(step) for step in (0, 10, 15, 20, 30, 1000)]
    assert found == pytest.approx([0.2, 0.2, 0.8 - 0.6 * 0.75**3, 0.8 - 0.6 / 8, 0.8, 0.8])
    shares = [cosine_share(step, 100) for step in (0, 25, 50, 100, 200)]
    assert shares == pytest.approx([0.3, 0.15 * (1 + math.sqrt(0.5)), 0.15, 0, 0])


def test_gradual_pruning_reaches_each_sparsity_of_the_schedule():
    model, target = small_net(), partial(cubic_sparsity, final=0.5, end=18)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    pruner = GradualPruner(model, target, every=3)
    seen = []

    def look(*_):
        seen.append((sparsity_of(masks_of(model)), masks_of(model)))

    optimizer.register_step_post_hook(pruner)
    optimizer.register_step_post_hook(look)
    train(model, optimizer, epochs=4)
    assert [step for step, _ in pruner.history] == list(range(3, 25, 3))
    for step, share in pruner.history:
        assert share == target(step)
        assert seen[step - 1][0] == pytest.approx(share, abs=1 / 36)
    for (_, before), (_, after) in itertools.pairwise(seen):
        assert all(not (after[name] & ~before[name]).any() for name in after)
    assert pruner.step == 24
    make_permanent(model)
    assert sparsity(model) == pytest.approx(0.5, abs=1 / 36)


# Zeros that are kept


def by_hand(how: str, name: str) -> int:
    """Prune a trained net by hand, train on, and count the zeros that came back."""
    torch.manual_seed(0)
    model = small_net()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer)
    masks = layer_masks(magnitude(model), 0.5)
    zero_pruned(model, masks)
    assert count_returned(model, masks) == 0
    if how == "kept":
        optimizer.register_step_post_hook(KeepMasks(model, masks))
    train(model, optimizer)
    if how == "kept":  # the optimizer forgets what is pruned, and nothing else
        states = [s for s in optimizer.state[model[0].weight].values() if torch.is_tensor(s)]
        for state in (state for state in states if state.dim()):
            assert not state[~masks["0"]].any()
            assert state[masks["0"]].any()
    return count_returned(model, masks)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zeros_come_back_unless_they_are_kept(name):
    assert by_hand("nothing", name) > 0
    assert by_hand("kept", name) == 0


@pytest.mark.parametrize("kind", [torch.optim.Rprop, torch.optim.Adafactor])
def test_an_optimizer_that_cannot_forget_is_refused(kind):
    model = small_net()
    optimizer = kind(model.parameters())
    optimizer.register_step_post_hook(KeepMasks(model, layer_masks(magnitude(model), 0.5)))
    with pytest.raises(ValueError, match=f"{kind.__name__} cannot forget single weights"):
        train(model, optimizer)


# Lottery tickets


def test_a_ticket_has_the_first_weights_under_the_last_masks():
    model = normed_net()
    first = snapshot(model)
    images = torch.randn(4, 1, 28, 28)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_epoch(model, [(images, torch.arange(4))] * 2, optimizer, nn.CrossEntropyLoss())
    masks = global_masks(magnitude(model), 0.8)
    apply_masks(model, masks)
    trained = copy.deepcopy(model)
    rewind(model, first)
    expected = normed_net()
    expected.load_state_dict(first)
    apply_masks(expected, masks)
    assert torch.equal(model.fc1.weight, expected.fc1.weight)  # before any forward
    assert torch.equal(model.eval()(images), expected.eval()(images))
    assert torch.equal(model.bn1.running_mean, torch.zeros(32))
    assert not torch.equal(trained.eval()(images), model(images))


def test_a_snapshot_does_not_follow_the_model_and_leaves_masks_out():
    model = small_net()
    before = snapshot(model)
    assert set(before) == set(model.state_dict())
    apply_masks(model, layer_masks(magnitude(model), 0.5))
    torch.testing.assert_close(snapshot(model), before, rtol=0, atol=0)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not torch.equal(snapshot(model)["0.weight"], before["0.weight"])


@pytest.mark.parametrize("kind", ["gradual", "kept", "regrowth"])
def test_hooks_leave_alone_what_is_not_theirs(kind):
    """A frozen layer, one that no mask names, and the other parameters; in double precision."""
    model = nn.Sequential(*small_net(), nn.Linear(3, 3, bias=False)).double()
    model[3].requires_grad_(False)
    frozen, masks = model[3].weight.clone(), {"0": torch.rand(8, 6) > 0.5}
    optimizer = OPTIMIZERS["decay"]([p for p in model.parameters() if p.requires_grad])
    hooks = {
        "gradual": lambda: GradualPruner(model[:3], partial(cubic_sparsity, final=0.5, end=4)),
        "kept": lambda: KeepMasks(model, masks),
        "regrowth": lambda: Regrowth(model, masks, every=2, end=50),
    }
    hook = hooks[kind]()
    optimizer.register_step_post_hook(hook)
    batches = [(rows.double(), labels) for rows, labels in BATCHES]
    train_epoch(model, batches, optimizer, nn.CrossEntropyLoss())
    assert torch.equal(model[3].weight, frozen)
    assert count_nonzeros(model)["0"][0] < 48
    if kind in ("kept", "regrowth"):
        assert count_returned(model, hook.masks) == 0
        assert count_nonzeros(model)["2"] == (24, 24)
    rows = batches[0][0]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(rows), model(rows))
    assert pickle.loads(pickle.dumps(hook)).model(rows[:, :6]).shape[0] == 8


# Regrowth


def drop_and_grow(mask, weight, growth, count):
    return _grown(_dropped(mask, weight, count), growth, count)


def test_drop_and_grow_worked_out_by_hand():
    mask = torch.tensor([[True, True, True], [False, False, False]])
    weight = torch.tensor([[0.1, -3.0, 0.2], [0.0, 0.0, 0.0]])
    growth = torch.tensor([[0.0, 9.0, 0.0], [1.0, 5.0, 4.0]])
    assert drop_and_grow(mask, weight, growth, 0).int().tolist() == [[1, 1, 1], [0, 0, 0]]
    assert drop_and_grow(mask, weight, growth, 1).int().tolist() == [[0, 1, 1], [0, 1, 0]]
    assert drop_and_grow(mask, weight, growth, 2).int().tolist() == [[0, 1, 0], [0, 1, 1]]
    growth[0, 0] = 100  # what was dropped may come back
    assert drop_and_grow(mask, weight, growth, 2).int().tolist() == [[1, 1, 0], [0, 1, 0]]
    assert mask.int().tolist() == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("name", ["momentum", "decay", "Adam"])
def test_regrowth_exchanges_weights_and_keeps_their_number(name):
    model = small_net()
    optimizer = OPTIMIZERS[name](model.parameters())
    start = layer_masks(random_scores(model), 0.5)
    given = {name: mask.clone() for name, mask in start.items()}
    regrowth = Regrowth(model, start, every=4, end=20)
    seen = []

    def look(*_):
        assert count_returned(model, regrowth.masks) == 0
        seen.append({name: mask.clone() for name, mask in regrowth.masks.items()})

    optimizer.register_step_post_hook(regrowth)
    optimizer.register_step_post_hook(look)
    train(model, optimizer, epochs=4)
    pairs = enumerate(itertools.pairwise(seen), start=2)
    changed = {step for step, (a, b) in pairs if not torch.equal(a["0"], b["0"])}
    assert set() < changed <= {4, 8, 12, 16}
    for masks in seen:
        assert {n: int(mask.sum()) for n, mask in masks.items()} == {"0": 24, "2": 12}
    assert sparsity(model) >= 0.5
    torch.testing.assert_close(start, given)


def test_an_exchange_goes_by_weight_and_gradient_and_starts_at_zero():
    model = nn.Sequential(nn.Linear(11, 1, bias=False))
    weight = model[0].weight
    with torch.no_grad():
        weight.copy_(torch.tensor([[0.1, -0.2, 2, -3, 4, 5, 6, -7, 0, 0, 0]]))
    # the smallest weight is the most wanted one: dropped, it grows again
    weight.grad = torch.tensor([[8.0, 0.2, 1, 1, 1, 1, 1, 1, 0.5, -5, 0.1]])
    optimizer = torch.optim.SGD([weight], lr=0.001, momentum=0.9)
    masks = {"0": torch.tensor([[True] * 8 + [False] * 3])}
    regrowth = Regrowth(model, masks, every=1, end=1000)  # two of eight
    optimizer.step()
    regrowth(optimizer)
    stayed = [[False] * 2 + [True] * 6 + [False] * 3]
    assert regrowth.masks["0"].int().tolist() == [[1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0]]
    momentum = optimizer.state[weight]["momentum_buffer"]
    assert (weight != 0).tolist() == (momentum != 0).tolist() == stayed


EMPTIED = {"0": torch.ones(8, 6), "2": torch.zeros(3, 8)}
HALF = {"0": torch.rand(8, 6) > 0.5}
WIDER = snapshot(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))
LONGER = snapshot(nn.Sequential(*small_net(), nn.Linear(3, 3)))


def cubic(model: nn.Module, final: float = 0.5, **options) -> float:
    return cubic_sparsity(3, final=final, end=5, **options)


def masked(model: nn.Module) -> nn.Module:
    apply_masks(model, layer_masks(magnitude(model), 0.5))
    return model


def drop(model: nn.Module, count: int, growth: float = 1.0) -> None:
    drop_and_grow(torch.arange(4) < 3, torch.ones(4), torch.full((4,), growth), count)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (partial(GradualPruner, sparsity=None, every=0), "every is a whole number from 1; got 0"),
        (partial(cubic, final=1.2), "final is a number from 0 to 1; got 1.2"),
        (partial(cubic, initial=-0.1), "initial is a number from 0 to 1; got -0.1"),
        (partial(cubic, initial=0.6), "initial <= final and 0 <= begin < end"),
        (partial(cubic, begin=5), "got initial 0.0, final 0.5, begin 5, end 5"),
        (lambda m: GradualPruner(m, lambda n: 1.5)(), r"sparsity is a number .*; got 1\.5"),
        (partial(drop, count=-1), "count is 0 to 3, the .* there are; got -1"),
        (partial(drop, count=4), "count is 0 to 3, the .* there are; got 4"),
        (partial(drop, count=1, growth=math.nan), "growth has NaN"),
        (partial(rewind, state=WIDER), r"the state has no 2\.weight of shape \(3, 8\)"),
        (partial(rewind, state=LONGER), r"the state has 3\.bias, 3\.weight, which the model"),
        (partial(zero_pruned, masks=EMPTIED), "the mask of 2 prunes all of its 24 weights"),
        (partial(KeepMasks, masks=EMPTIED), "the mask of 2 prunes all of its 24 weights"),
        (partial(Regrowth, masks=HALF, every=0, end=5), "every is a whole number from 1; got 0"),
        (partial(Regrowth, masks=HALF, every=1, end=0), "end is a whole number from 1; got 0"),
        (lambda m: GradualPruner(masked(m), None), "0 is pruned already"),
        (lambda m: KeepMasks(masked(m), HALF), "0 has a mask"),
    ],
)
def test_what_makes_no_sense_changes_nothing(call, problem):
    model = small_net()
    before = snapshot(model)
    with pytest.raises(ValueError, match=problem):
        call(model)
    torch.testing.assert_close(snapshot(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("hook", ["gradual", "regrowth"])
def test_everything_stays_on_the_model_s_device(hook):
    """On a machine with a GPU this is the test of the hooks and of pruning on it."""
    [device] = get_devices(1)
    place = device.device
    model = normed_net().to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hooks = {
        "gradual": lambda: GradualPruner(model, partial(cubic_sparsity, final=0.8, end=3)),
        "regrowth": lambda: Regrowth(model, layer_masks(random_scores(model), 0.8), every=1, end=9),
    }
    optimizer.register_step_post_hook(hooks[hook]())
    images = torch.randn(4, 1, 28, 28, device=place)
    train_epoch(model, [(images, torch.arange(4))] * 4, optimizer, nn.CrossEntropyLoss())
    assert sparsity(model) > 0.2
    if hook == "gradual":
        make_permanent(model)
    slim = remove_channels(model, {"conv2": torch.arange(64, device=place) > 20})
    by_zeros = zero_channels(model, {"conv2": torch.arange(64) > 20})  # masks of another device
    with torch.no_grad():
        expected = by_zeros.eval()(images)
        torch.testing.assert_close(slim.eval()(images), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(to_sparse(slim)(images), expected, rtol=1e-4, atol=1e-4)
    dense, useful = multiply_adds(slim, images)
    assert useful < dense
    assert {p.device for p in [*slim.parameters(), *slim.buffers()]} == {images.device}
    assert latencies({"slim": slim}, images, device, repeats=1)["slim"].median_s > 0
