"""A stage gives the gradients of one uncut backward, whole or in halves, whatever it holds."""

import copy
import functools
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mpcourse.devices.devices import get_devices
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.put_off import run_inputs, run_weights
from mpcourse.pipeline.stage import Stage
from mpcourse.schedules.named import SCHEDULES, num_devices_for

close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12, check_device=False)
SPLIT = ("zb-h1", "zb-h2", "zb-v")


def linear(inputs: int = 4, outputs: int = 4, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias, dtype=torch.double)


class Calls(nn.Module):
    """A module whose forward is a function of itself and its input."""

    def __init__(self, forward, **parts) -> None:
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, value):
        return self.does(self, value)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.double))


def without_gradients(module, value):
    with torch.no_grad():
        hidden = module.frozen(value)
    return module.head(hidden)


STAGES = {
    "linear": linear,
    "mlp": lambda: nn.Sequential(linear(), nn.ReLU(), linear(4, 8), nn.GELU(), linear(8, 4)),
    "norm and dropout 0": lambda: nn.Sequential(
        nn.LayerNorm(4).double(), nn.Dropout(0.0), linear()
    ),
    "frozen backbone, head": lambda: Calls(without_gradients, frozen=linear(), head=linear()),
    "embedding of what came": lambda: Calls(
        lambda s, x: s.table((x.abs() * 3).long().clamp(0, 7)).sum(-2),
        table=nn.Embedding(8, 4).double(),
    ),
    "a layer used twice": lambda: Calls(lambda s, x: s.a(torch.tanh(s.a(x))), a=linear()),
    "a weight used twice": lambda: Calls(
        lambda s, x: torch.tanh(x @ s.w) @ s.w.T * s.w.sum(), w=parameter(4, 4)
    ),
    "gru": lambda: Calls(lambda s, x: s.gru(x.unsqueeze(0))[0][0], gru=nn.GRU(4, 4, 2).double()),
    "a weight beside the way": lambda: Calls(
        lambda s, x: s.a(x) * s.t + s.t.exp(), a=linear(), t=parameter(4)
    ),
    "nothing comes from the input": lambda: Calls(
        lambda s, x: s.t.exp().expand(len(x), 4), t=parameter(4)
    ),
    "no weights": nn.Tanh,
    "frozen weights": lambda: linear().requires_grad_(False),
    "one of two frozen": lambda: nn.Sequential(linear().requires_grad_(False), linear()),
    "a view at the end": lambda: nn.Sequential(linear(4, 4), nn.Unflatten(1, (2, 2)), nn.Flatten()),
    "a layer that is skipped": lambda: Calls(lambda s, x: s.a(x), a=linear(), b=linear()),
    "in place behind a layer": lambda: nn.Sequential(linear(), nn.ReLU(inplace=True)),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, dtype=torch.double),
}


def gradients_of(module: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def same_gradients(found: list, expected: list) -> None:
    assert [g is None for g in found] == [g is None for g in expected]
    for ours, theirs in zip(found, expected, strict=True):
        if ours is not None:
            close(ours, theirs)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", STAGES)
def test_every_kind_of_stage_trains_as_uncut_in_every_schedule(name, schedule, recompute):
    torch.manual_seed(0)
    count = 4
    stages = [linear(), *(STAGES[name]() for _ in range(count - 2)), linear()]
    uncut = nn.Sequential(*copy.deepcopy(stages))
    devices = get_devices(num_devices_for(schedule, count))
    pipeline = Pipeline(stages, devices, schedule, num_microbatches=4, recompute=recompute)
    inputs, targets = torch.randn(8, 4, dtype=torch.double), torch.randn(8, 4, dtype=torch.double)
    parts = zip(inputs.chunk(4), targets.chunk(4), strict=True)
    expected = sum(nn.functional.mse_loss(uncut(x), y) for x, y in parts) / 4
    expected.backward()
    close(pipeline.step(inputs, targets, nn.MSELoss()), expected.detach())
    same_gradients(gradients_of(pipeline), gradients_of(uncut))
    assert [p.requires_grad for p in pipeline.parameters()] == [
        p.requires_grad for p in uncut.parameters()
    ]


def layers(forward) -> nn.Module:
    return Calls(forward, a=linear(), b=linear(bias=False), w=parameter(4, 4))


convolutions = [nn.Conv2d(1, 4, 3, 2, padding=2, bias=False), nn.BatchNorm2d(4), nn.ReLU(True)]
convolutions += [nn.ConvTranspose2d(4, 2, 2, 2, padding=1, groups=2), nn.Conv2d(2, 2, 1, groups=2)]
function = nn.functional.linear
WAITS = {  # which weights' gradients wait for W
    "gru": "gru.weight_ih_l0 gru.weight_ih_l1",
    "transformer": "self_attn.in_proj_weight self_attn.out_proj.weight "
    "linear1.weight linear2.weight",
    nn.Sequential(nn.Unflatten(1, (1, 2, 2)), *convolutions): "1.weight 4.weight 5.weight",
    layers(lambda s, x: s.a(x) * s.a.weight.sum()): "",
    layers(lambda s, x: s.b(x) @ s.w): "w b.weight",
    layers(lambda s, x: s.b(x) + s.w.view(4, 4)): "b.weight",  # one memory for both gradients
    layers(lambda s, x: x @ s.w.mT @ s.w): "w",
    layers(lambda s, x: torch.addmm(s.a.bias, x, s.w, alpha=2)): "",
    layers(lambda s, x: function(s.w, x).mT): "",  # x takes the weight's place
    layers(lambda s, x: x + s.b(torch.ones_like(x))): "",  # nothing lies behind b
    # torch 2.9 does not tell what hooks keep
    layers(lambda s, x: s.b(checkpoint(s.a, x, use_reentrant=False))): "b.weight"
    if hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
    else "a.weight b.weight",
    layers(lambda s, x: function(x, 1 + s.w @ torch.eye(4).to(x))): "w",  # made of it alone
    layers(lambda s, x: function(x, s.b.weight * s.w) + x @ s.w): "",
}


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize(("kind", "expected"), WAITS.items())
def test_i_leaves_the_products_of_weights_alone_and_w_makes_the_same(kind, expected, autocast):
    """Under autocast, too, where a product has 16 bits and the weight 32."""
    torch.manual_seed(0)
    module = STAGES[kind]() if isinstance(kind, str) else copy.deepcopy(kind)
    module.to(dtype := torch.float if autocast else torch.double)
    stage, found = Stage(module, is_first=False), []
    for halves in ("B", "IW"):
        module.zero_grad()
        value = torch.eye(4, dtype=dtype).add(0.3).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            arriving = [stage.forward(i, value).detach() / 3 + i for i in range(2)]
        for half in halves:
            for i, gradient in enumerate(arriving):
                stage.run_backward(half, i, [gradient])
            found.append([*gradients_of(module), value.grad])
    names = [*(name for name, _ in module.named_parameters()), "input"]
    rows = zip(names, *found, strict=True)
    waiting = {name for name, whole, half, _ in rows if half is None is not whole}
    assert waiting == set(expected.split())
    same_gradients(found[2], found[0])


def sends_more(s, value):
    return {"a": s.a(value) * s.t, "b": s.t.exp(), "c": s.t, "d": s.u.sin()}


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("schedule", SPLIT)
def test_what_a_stage_sends_beside_its_way_keeps_its_gradients(schedule, recompute):
    """t joins the way, is sent on as exp(t), and as itself; u is sent on without joining."""

    def make() -> list[nn.Module]:
        torch.manual_seed(0)
        middle = Calls(sends_more, a=linear(), t=parameter(4), u=parameter(4))
        last = Calls(lambda s, x: s.out(x["a"]) + x["b"] * x["c"] + x["d"], out=linear())
        return [linear(), middle, last, linear()]

    stages, uncut = make(), nn.Sequential(*make())
    devices = get_devices(num_devices_for(schedule, 4))
    pipeline = Pipeline(stages, devices, schedule, num_microbatches=1, recompute=recompute)
    inputs, targets = torch.randn(4, 4, dtype=torch.double), torch.randn(4, 4, dtype=torch.double)
    nn.functional.mse_loss(uncut(inputs), targets).backward()
    pipeline.step(inputs, targets, nn.MSELoss())
    same_gradients(gradients_of(pipeline), gradients_of(uncut))
    assert all(p.requires_grad for p in pipeline.parameters())


class ScaledLoss(nn.Module):
    """A loss with a weight of its own."""

    reduction = "mean"

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.double))

    def forward(self, output, target):
        return (self.scale * (output - target)).square().mean()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_loss_with_a_weight_of_its_own_trains_it(schedule):
    torch.manual_seed(0)
    stages = [linear() for _ in range(4)]
    uncut, loss_fn = nn.Sequential(*copy.deepcopy(stages)), ScaledLoss()
    inputs, targets = torch.randn(8, 4, dtype=torch.double), torch.randn(8, 4, dtype=torch.double)
    loss_fn(uncut(inputs), targets).backward()
    expected, loss_fn.scale.grad = loss_fn.scale.grad, None
    devices = get_devices(num_devices_for(schedule, 4))
    Pipeline(stages, devices, schedule, num_microbatches=4).step(inputs, targets, loss_fn)
    close(loss_fn.scale.grad, expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_hooks_on_gradients_run_once_a_micro_batch_in_every_stage(schedule):
    stages = [nn.Sequential(linear(), nn.Tanh()) for _ in range(3)]
    stages[1] = Calls(lambda s, x: s.a(x) * s.a.weight.sum(), a=linear())
    stages.append(Calls(lambda s, x: s.a(torch.tanh(s.a(x))), a=linear()))
    ran: list[str] = []
    for index, stage in enumerate(stages):
        for name, weight in stage.named_parameters():
            key = f"{index} {name}"
            weight.register_hook(lambda gradient, key=key: ran.append(f"{key} tensor"))
            weight.register_post_accumulate_grad_hook(lambda _, key=key: ran.append(f"{key} after"))
    devices = get_devices(num_devices_for(schedule, 4))
    pipeline = Pipeline(stages, devices, schedule, num_microbatches=4)
    batch = torch.randn(4, 4, dtype=torch.double), torch.randn(4, 4, dtype=torch.double)
    pipeline.step(*batch, nn.MSELoss())
    assert len(set(ran)) == 4 * 2 * 2
    assert {ran.count(key) for key in ran} == {4}


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value * 1

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("no way back")


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_an_error_in_a_backward_keeps_its_type(schedule):
    stages = [linear(), nn.Sequential(linear(), Calls(lambda s, x: Refuses.apply(x)))]
    pipeline = Pipeline(stages, schedule=schedule, num_microbatches=2)
    with pytest.raises(KeyError, match="no way back") as caught:
        pipeline.step(torch.ones(2, 4).double(), torch.ones(2, 4).double(), nn.MSELoss())
    assert "stage 1" in caught.value.__notes__[0]


def test_an_error_in_w_names_where_it_was():
    stages = [linear() for _ in range(2)]
    stages[1].weight.register_hook(lambda gradient: 1 / 0)
    pipeline = Pipeline(stages, schedule="zb-h1", num_microbatches=2)
    batch = torch.ones(4, 4, dtype=torch.double), torch.ones(4, 4, dtype=torch.double)
    with pytest.raises(ZeroDivisionError) as caught:
        pipeline.step(*batch, nn.MSELoss())
    assert "device 1, 1W0: stage 1, weight gradient of micro-batch 0" in caught.value.__notes__[0]


def test_i_keeps_the_factors_of_the_products_and_w_nothing():
    """Only the sigmoid meets a weight."""
    made = []

    def forward(s, x):
        factor = (hidden := s.a(x)).sigmoid()
        output = s.b(factor).sin()
        hidden.register_hook(of_the_graph := lambda gradient: None)
        made.extend(map(weakref.ref, (hidden, factor.untyped_storage(), output, of_the_graph)))
        return output

    stage = Stage(Calls(forward, a=linear(), b=linear()), is_first=False)
    stage.forward(0, torch.ones(2, 4, dtype=torch.double, requires_grad=True))
    stage.backward_input(0, [torch.ones(2, 4).double()])
    assert [saved() is None for saved in made] == [True, False, True, True]
    stage.backward_weight(0)
    assert [saved() is None for saved in made] == [True] * 4


def test_what_is_changed_in_place_between_i_and_w_is_refused():
    kept = []
    stage = Stage(
        Calls(lambda s, x: s.a(kept.append(x * 2) or kept[0]), a=linear()), is_first=False
    )
    stage.forward(0, torch.ones(2, 4, dtype=torch.double, requires_grad=True))
    stage.backward_input(0, [torch.ones(2, 4).double()])
    kept[0].detach().add_(1)
    with pytest.raises(RuntimeError, match="changed in place before W"):
        stage.backward_weight(0)


def test_complex_values_are_handed_on_with_their_gradients():
    def make() -> list[nn.Module]:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex128))
        return [
            Calls(lambda s, x: x @ s.w, w=weight),
            Calls(lambda s, x: (x @ s.w).abs(), w=nn.Parameter(weight.detach().clone())),
        ]

    stages, uncut = make(), nn.Sequential(*make())
    inputs, targets = torch.randn(4, 4, dtype=torch.complex128), torch.randn(4, 4).double()
    nn.functional.mse_loss(uncut(inputs), targets).backward()
    Pipeline(stages, schedule="zb-h1", num_microbatches=2).step(inputs, targets, nn.MSELoss())
    same_gradients(gradients_of(nn.ModuleList(stages)), gradients_of(uncut))


def test_a_gradient_is_asked_for_only_where_the_sender_s_tensor_required_one():
    seen = {}

    def sends(module, value):
        return {"x": module.a(value), "mask": (value > 0).double(), "where": value.long()}

    def takes(module, value):
        seen.update({name: tensor.requires_grad for name, tensor in value.items()})
        value["mask"].clamp_(max=0.5)  # in place, as on an input that nobody trains
        value["mask"].cpu().numpy()
        return value["x"] * value["mask"]

    stages = [Calls(sends, a=linear()), Calls(takes)]
    pipeline = Pipeline(stages, schedule="zb-h1", num_microbatches=2)
    pipeline.step(torch.randn(4, 4).double(), torch.randn(4, 4).double(), nn.MSELoss())
    assert seen == {"x": True, "mask": False, "where": False}
    assert stages[0].a.weight.grad is not None


def test_no_matrix_product_is_computed_twice_and_the_first_half_makes_no_weight_s():
    module = nn.Sequential(linear(), nn.Tanh(), linear(), nn.Tanh(), linear())
    leaf = torch.randn(2, 4, dtype=torch.double, requires_grad=True)
    output = module(leaf)
    with FlopCounterMode(display=False) as inputs:
        queue = run_inputs([output], [torch.ones(2, 4).double()], [leaf])
    with FlopCounterMode(display=False) as weights:
        run_weights(queue)
    assert inputs.get_total_flops() == weights.get_total_flops() == 3 * 2 * 2 * 4 * 4


def test_a_stage_keeps_a_micro_batch_until_its_backward_and_no_longer():
    stage = Stage(linear(), is_first=False)
    value = torch.randn(2, 4, dtype=torch.double, requires_grad=True)
    for index in range(3):
        stage.forward(index, value)
    assert sorted(stage.in_flight) == [0, 1, 2]
    stage.backward(1, [torch.ones(2, 4).double()])
    assert sorted(stage.in_flight) == [0, 2]
    stage.backward_input(0, [torch.ones(2, 4).double()])
    assert sorted(stage.in_flight) == [0, 2]
    stage.backward_weight(0)
    assert sorted(stage.in_flight) == [2]


def test_the_first_stage_returns_no_gradient_and_leaves_all_to_w():
    stage = Stage(linear(), is_first=True)
    inputs = torch.ones(2, 4, dtype=torch.double, requires_grad=True)
    stage.forward(0, inputs)
    assert stage.backward_input(0, [torch.ones(2, 4).double()]) == []
    assert stage.module.weight.grad is None
    stage.backward_weight(0)
    assert stage.module.weight.grad is not None


def test_an_output_that_nobody_uses_is_left_out_of_the_backward():
    stage = Stage(Calls(lambda s, x: (s.a(x), s.b(x)), a=linear(), b=linear()), is_first=False)
    value = torch.ones(2, 4, dtype=torch.double, requires_grad=True)
    for index in range(2):
        stage.forward(index, value)
    stage.backward(0, [torch.ones(2, 4).double(), None])
    assert stage.module.b.weight.grad is None
    stage.backward_input(1, [torch.ones(2, 4).double(), None])
    stage.backward_weight(1)
    assert stage.module.b.weight.grad is None
    assert stage.module.a.weight.grad is not None


def test_a_stage_that_begins_in_place_hears_why_it_cannot():
    stage = Stage(nn.ReLU(inplace=True), is_first=False)
    value = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf") as caught:
        stage.forward(0, value)
    assert "cut one layer earlier" in caught.value.__notes__[0]
