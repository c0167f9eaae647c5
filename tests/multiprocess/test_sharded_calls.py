"""The calls of torch's own tests of optimizers and modules: the same sharded, or refused in words.

Each call is written once; it gets torch's class in one process, or ours on each of two ranks.
"""

import copy
import io

import pytest
import torch
from sharded_kit import MOMENTUM, ROWS, TIED, TOKENS, Kit, Module, close, same, squares
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim import lr_scheduler as schedulers

from mpcourse.multiprocess import (
    FullySharded,
    ShardedOptimizer,
    ranks_in_threads,
    sharded_optimizer,
)
from mpcourse.multiprocess.sharded_optimizer import ALONE_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:Using backward")
IN_CHANNELS_LAST = nn.Conv2d(3, 5, 3).double().to(memory_format=torch.channels_last)
IMAGES = torch.randn(4, 3, 6, 6, dtype=torch.float64)


SCHEDULERS = {
    "step": lambda o: schedulers.StepLR(o, 1, 0.1),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=9),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.2, step_size_up=2),
    "in turn": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o, 0.1), schedulers.ExponentialLR(o, 0.9)], [1]
    ),
}


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_run_that_is_resumed_has_the_rate_of_the_scheduler(make, stage):
    def call(kit):
        net, optimizer = kit.begin()
        scheduler = make(optimizer)
        kit.train(net, optimizer, 3, scheduler.step)
        saved = copy.deepcopy(optimizer.state_dict())
        resumed = kit.optimizer(net.parameters(), **MOMENTUM)
        again = make(resumed)
        resumed.load_state_dict(copy.deepcopy(saved))
        again.load_state_dict(scheduler.state_dict())
        kit.train(net, resumed, 2, again.step)
        return saved, [group["lr"] for group in resumed.param_groups], kit.ended(net, resumed)

    same(call, stage=stage)


CUT = [SGD, torch.optim.Adam, AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax]
CUT += [torch.optim.ASGD, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop]
CUT += [torch.optim.Rprop]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind", CUT)
def test_every_optimizer_that_is_taken_is_saved_and_loaded(kind, stage):
    def call(kit):
        net = kit.net()
        net.register_parameter("alone", nn.Parameter(torch.ones((), dtype=torch.float64)))
        optimizer = kit.optimizer(net.parameters(), kind)

        def train(optimizer):
            optimizer.zero_grad()
            loss = lambda rows: (net(rows) * net.alone).square().mean()  # noqa: E731
            kit.backward(net.parameters(), loss)
            optimizer.step()

        train(optimizer)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        resumed = kit.optimizer(net.parameters(), kind)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        train(resumed)
        return kit.ended(net, resumed)

    same(call, stage=stage)


def clipped(kit):
    net, optimizer = kit.begin()
    norms = [float(kit.clip(net, optimizer, 1.0))]  # nothing has a gradient
    for max_norm in (0.01, 1e9, float("inf")):
        optimizer.zero_grad()
        kit.backward(net.parameters(), squares(net))
        norms.append(float(kit.clip(net, optimizer, max_norm)))
        optimizer.step()
    return norms, kit.ended(net, optimizer)


def a_layer_is_frozen_and_another_unfrozen_later(kit):
    net = kit.net()
    net[0].requires_grad_(False)
    optimizer = kit.optimizer(net.parameters(), **MOMENTUM)
    kit.train(net, optimizer)
    net[0].requires_grad_(True)
    net[2].requires_grad_(False)
    kit.train(net, optimizer)
    return kit.ended(net, optimizer)


def gradients_are_made_zero_and_a_layer_is_not_used(kit):
    net, optimizer = kit.begin()
    kit.train(net, optimizer)
    for set_to_none in (False, True):
        optimizer.zero_grad(set_to_none=set_to_none)
        kit.backward(net.parameters(), lambda rows: net[2](rows[:, :3]).square().mean())
        optimizer.step()
    return kit.ended(net, optimizer)


def groups_of_their_own_options_and_a_later_one(kit):
    net, other = kit.net(), kit.net()
    groups = [{"params": net[0].parameters(), "lr": 0.3}, {"params": net[2].weight}]
    optimizer = kit.optimizer(groups, **MOMENTUM)
    kit.train(net, optimizer)
    optimizer.add_param_group({"params": [net[2].bias], "maximize": True, "weight_decay": 0})
    optimizer.param_groups[0]["momentum"] = 0.5
    kit.train(net, optimizer)
    resumed = kit.optimizer([{"params": p} for p in other.parameters()][:3], **MOMENTUM)
    with pytest.raises(ValueError, match="parameter group"):
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert not resumed.state
    return kit.ended(net, optimizer), resumed.param_groups[0]["lr"]


def the_rate_is_a_tensor(kit):
    net = kit.net()
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer = kit.optimizer(net.parameters(), torch.optim.Adam, lr=rate, amsgrad=True)
    kit.train(net, optimizer, 2, schedulers.StepLR(optimizer, 1, 0.1).step)
    return kit.ended(net, optimizer)


def a_closure_and_hooks_of_the_step(kit):
    net, seen = kit.net(), []
    optimizer = kit.optimizer(net.named_parameters(), **MOMENTUM)  # names are saved too
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        optimizer.zero_grad()
        kit.backward(net.parameters(), squares(net))
        return net(ROWS).sum()

    return optimizer.step(closure), seen, kit.ended(net, optimizer)


def the_module_is_moved_and_its_data_replaced(kit):
    net = kit.net().float()
    optimizer = kit.optimizer(net.parameters(), lr=0.1)
    net.double()
    kit.train(net, optimizer)
    net[0].weight.data = torch.ones(3, 5, dtype=torch.float64)
    kit.train(net, optimizer)
    return kit.ended(net, optimizer)


def the_state_is_read_and_forgotten(kit):
    net, optimizer = kit.begin()
    sizes = [len(optimizer.state[p]) for p in net.parameters()]  # reading makes an empty one
    kit.train(net, optimizer)
    sizes += [len(optimizer.state[p]) for p in net.parameters()]
    optimizer.state.clear()
    kit.train(net, optimizer, 1)
    return sizes, kit.ended(net, optimizer)


def a_second_optimizer_of_the_same_module(kit):
    net = kit.net()
    first = kit.optimizer(net.parameters(), **MOMENTUM)
    kit.train(net, first)
    second = kit.optimizer(net.parameters(), **MOMENTUM)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    kit.train(net, second)
    if kit.stage == 2:
        with pytest.raises(RuntimeError, match="parameter 0 do not come here: a later optimizer"):
            first.step()
    del first, second  # now the gradients stay where torch's own looks for them
    after = kit.optimizer(net.parameters(), **MOMENTUM)
    kit.train(net, after)
    return kit.ended(net, after)


def several_backwards_add_up(kit):
    net, optimizer = kit.begin()
    for rows in (kit.rows, kit.rows.flip(0)[:4]):
        kit.backward(net.parameters(), squares(net), rows)
    optimizer.step()
    return kit.ended(net, optimizer)


def weights_and_gradients_lie_in_different_orders(kit):
    net = copy.deepcopy(IN_CHANNELS_LAST)
    optimizer = kit.optimizer(net.parameters(), AdamW)
    for _ in range(2):
        optimizer.zero_grad()
        kit.backward(net.parameters(), squares(net), IMAGES)
        if kit.stage < 2:
            for parameter in net.parameters():
                parameter.grad = parameter.grad.contiguous()
        optimizer.step()
    return kit.ended(net, optimizer)


def sizes_and_types(kit):
    shapes = [(), (1,), (2, 3), (4, 0), (0,)]
    types = [torch.float32, torch.bfloat16, torch.complex64]
    params = [nn.Parameter(torch.ones(s, dtype=t)) for s in shapes for t in types]
    params.append(nn.Parameter(torch.ones(3, 2).t()))
    params.append(nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False))
    optimizer = kit.optimizer(params, AdamW, foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        loss = lambda _: sum((p * p.conj()).real.float().sum() for p in params[:-1])  # noqa: E731
        kit.backward(params, loss)
        optimizer.step()
    return dict(enumerate(params)), optimizer.state_dict()


def sparse_gradients(kit):
    net = nn.Embedding.from_pretrained(torch.ones(5, 3).double(), freeze=False, sparse=True)
    optimizer = kit.optimizer(net.parameters(), SGD, lr=0.1)
    kit.backward(net.parameters(), lambda rows: net(rows).sum(1).mean(), torch.tensor([3, 0, 3, 1]))
    optimizer.step()
    return kit.ended(net, optimizer)


@pytest.mark.parametrize("alone_bytes", [0, ALONE_BYTES])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    "call",
    [
        clipped,
        a_layer_is_frozen_and_another_unfrozen_later,
        gradients_are_made_zero_and_a_layer_is_not_used,
        groups_of_their_own_options_and_a_later_one,
        the_rate_is_a_tensor,
        a_closure_and_hooks_of_the_step,
        the_module_is_moved_and_its_data_replaced,
        the_state_is_read_and_forgotten,
        a_second_optimizer_of_the_same_module,
        several_backwards_add_up,
        weights_and_gradients_lie_in_different_orders,
        sizes_and_types,
        sparse_gradients,
    ],
)
def test_an_optimizer_does_what_torchs_does(call, stage, alone_bytes, monkeypatch):
    monkeypatch.setattr(sharded_optimizer, "ALONE_BYTES", alone_bytes)
    same(call, stage=stage)


# What no optimizer of ours can do, and a ShardedOptimizer beside another


class OnePerTensor(SGD):
    """Its state is no number for each of the parameter's."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["norm"] = parameter.detach().norm()


def stepped(group, stage=1, kind=SGD, **options):
    kit, net = Kit(group, stage), Kit().net()
    optimizer = kit.optimizer(net.parameters(), kind, **options)
    kit.train(net, optimizer, 1)
    return net, optimizer


def by_hand(group):
    net, optimizer = stepped(group, 2)
    net[0].bias.grad = torch.ones_like(net[0].bias)
    optimizer.step()


def put_in(group):
    _, optimizer = stepped(group, 2)
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(2)))
    optimizer.step()


def second_derivative(group):
    net, _ = stepped(group, 2)
    net(ROWS).square().sum().backward(create_graph=True)


def other_form(group):
    _, optimizer = stepped(group, **MOMENTUM)
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)
    saved["state"][2]["momentum_buffer"] = torch.ones(4, 3)
    try:
        optimizer.load_state_dict(saved)
    finally:
        close(optimizer.state_dict(), before)


REFUSED = {
    r"Adafactor looks at whole": lambda g: stepped(g, kind=torch.optim.Adafactor),
    r"LBFGS looks at whole": lambda g: stepped(g, kind=torch.optim.LBFGS),
    r"optimizer_class has to be an Optimizer; got 'adam'": lambda g: stepped(g, kind="adam"),
    r"optimizer_class has to be an Optimizer; got <class": lambda g: stepped(g, kind=nn.Linear),
    r"OnePerTensor cannot be sharded": lambda g: stepped(g, kind=OnePerTensor)[1].state_dict(),
    r"empty, or has a parameter twice": lambda g: stepped(g)[1].add_param_group({"params": []}),
    r"differentiable=True: autograd": lambda g: stepped(g, differentiable=True),
    r"is not copied or pickled": lambda g: copy.deepcopy(stepped(g)[1]),
    r"calls no hooks": lambda g: stepped(g)[1].register_state_dict_post_hook(print),
    r"parameter 1 has a gradient that was not averaged": by_hand,
    r"gradients of parameter 4 do not come here: .* or it is not from add_param_group": put_in,
    r"averaged over ranks have no second derivative": second_derivative,
    r"momentum_buffer of parameter 2 has shape \(4, 3\); the parameter has \(1, 3\)": other_form,
    r"number 1 is .*\(4, 2\).* on rank 0 and .*\(5, 2\).* on rank 1": lambda g: ShardedOptimizer(
        [nn.Parameter(torch.ones(size)) for size in [(3, 2), (4 + g.rank(), 2)]], SGD, group=g
    ),
    r"number 1 is .*\(2,\).* on rank 0 and nothing on rank 1": lambda g: ShardedOptimizer(
        nn.Linear(3, 2, bias=g.rank() == 0).parameters(), SGD, group=g
    ),
    r"number 0 is .*=True on rank 0 and .*=False on rank 1": lambda g: ShardedOptimizer(
        [nn.Parameter(torch.ones(2), g.rank() == 0)], SGD, group=g
    ),
}


def whole_when_saved_and_loaded(kit):
    net = kit.net()
    kit.train(net, kit.optimizer(net.parameters(), **MOMENTUM))
    saved = copy.deepcopy(kit.inner(net).state_dict())
    plain, again = copy.deepcopy(TIED), kit.net()
    plain.load_state_dict(saved)
    again.load_state_dict(net.state_dict())
    kit.inner(again).norm.load_state_dict(plain.norm.state_dict())
    kit.train(again, kit.optimizer(again.parameters(), **MOMENTUM))
    return saved, plain(TOKENS), kit.inner(again).state_dict()


def loaded_in_part(kit):
    net = kit.net()
    given = {"scale": torch.tensor(3.0), "other": torch.ones(1)}
    found = kit.inner(net).load_state_dict(given, strict=False)
    return sorted(found.missing_keys), found.unexpected_keys, kit.inner(net).state_dict()


def frozen_and_unfrozen(kit):
    net = kit.net()
    kit.inner(net).embedding.requires_grad_(False)
    optimizer = kit.optimizer(net.parameters(), **MOMENTUM)
    kit.train(net, optimizer)
    net.requires_grad_(True)
    kit.inner(net).scale.requires_grad_(False)
    kit.train(net, optimizer, set_to_none=False)
    return kit.inner(net).state_dict()


def with_sparse_gradients(kit):
    ones = torch.ones(7, 3, dtype=torch.float64)
    net = kit.net(nn.Embedding.from_pretrained(ones, freeze=False, sparse=True))
    kit.train(net, SGD(net.parameters(), lr=0.1))
    return kit.inner(net).state_dict()


def made_of_other_numbers(kit):
    net = kit.net(copy.deepcopy(TIED).float())
    net.double()
    kit.train(net, SGD(net.parameters(), lr=0.1))
    return kit.inner(net).state_dict()


def without_gradients(kit):
    net = kit.net()
    with torch.inference_mode():
        first = net(TOKENS).clone()
    with torch.no_grad():
        return first, net(tokens=TOKENS)


@pytest.mark.parametrize(
    "call",
    [
        whole_when_saved_and_loaded,
        loaded_in_part,
        clipped,
        frozen_and_unfrozen,
        several_backwards_add_up,
        with_sparse_gradients,
        made_of_other_numbers,
        without_gradients,
    ],
)
def test_a_fully_sharded_module_does_what_the_module_does(call):
    same(call, Module)


def changed(change):
    """A program that changes a sharded module and runs it."""

    def program(group):
        net = FullySharded(copy.deepcopy(TIED), group=group)
        change(net)
        net(TOKENS).sum().backward()

    return program


def load(change, **options):
    def program(net):
        given, before = net.module.state_dict(), net.module.state_dict()
        change(given)
        try:
            net.module.load_state_dict(given, **options)
        finally:
            close(net.module.state_dict(), before)

    return changed(program)


def parts_given_on(net):
    ShardedOptimizer(net.parameters(), SGD, group=net._group)


def all_changed(net):
    loss = net(TOKENS).sum()
    with torch.no_grad():
        for part in net.parameters():
            part += 1
    loss.backward()


MODULE_REFUSED = {
    r"changed between its forward and its backward": changed(all_changed),
    r"ReLU has no parameters": lambda group: FullySharded(nn.ReLU(), group=group),
    r"embedding.weight has shape \(9,\); the whole .* has \(7, 3\)": load(
        lambda given: given.update({"embedding.weight": torch.ones(9)})
    ),
    r"assign=True\) would put whole parameters in": load(lambda given: None, assign=True),
    r"scale was put in after the others": changed(
        lambda net: setattr(net.module, "scale", nn.Parameter(torch.ones(())))
    ),
    r"head.weight was put in after": changed(
        lambda net: setattr(net.module, "head", nn.Linear(3, 7).double())
    ),
    r"module that is sharded is not copied": changed(copy.deepcopy),
    r"scale has a hook, which would not be called": changed(
        lambda net: next(net.parameters()).register_hook(print)
    ),
    r"parts of a FullySharded module already": changed(parts_given_on),
    r"parts of .* make the module anew": changed(lambda net: FullySharded(net, group=net._group)),
    r"averaged over ranks have no second derivative": lambda group: (
        FullySharded(copy.deepcopy(TIED), group=group)(TOKENS)
        .square()
        .sum()
        .backward(create_graph=True)
    ),
    r"compute_dtype is a floating-point type; got torch.int8": lambda group: FullySharded(
        nn.Linear(2, 2), torch.int8, group
    ),
    r"number 0 is weight .*\(2, 3\).* on rank 0 and .*\(3, 3\)": lambda group: FullySharded(
        nn.Linear(3, 2 + group.rank()), group=group
    ),
    r"number 0 is 0 .*=True on rank 0 and .*=False on rank 1": lambda group: FullySharded(
        nn.ParameterList([nn.Parameter(torch.ones(2), group.rank() == 0)]), group=group
    ),
}


@pytest.mark.parametrize(("words", "call"), [*REFUSED.items(), *MODULE_REFUSED.items()])
def test_what_cannot_be_done_is_refused(words, call):
    with pytest.raises((ValueError, TypeError, RuntimeError, NotImplementedError), match=words):
        ranks_in_threads(call, 2, timeout_s=5)
