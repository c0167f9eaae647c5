"""`replicate`: copies that share what the original shares and send their gradients back to it."""

import copy

import pytest
import torch
from torch import nn
from verbs import DOUBLE, GPUS, indices

from mpcourse.data_parallel.replicas import replicate

CORES = ["cpu", "cpu", "cpu"]


class Tied(nn.Module):
    """One weight under two names, one submodule under two names, one buffer under two names."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(3, 3, **DOUBLE)
        self.out_of = nn.Linear(3, 3, **DOUBLE)
        self.out_of.weight = self.into.weight
        self.norm = nn.BatchNorm1d(3, **DOUBLE)
        self.same_norm = self.norm
        self.register_buffer("mean", self.norm.running_mean)

    def forward(self, x):
        return self.same_norm(self.out_of(self.norm(self.into(x))))


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.listed = nn.ParameterList([torch.randn(3, **DOUBLE) for _ in range(2)])
        self.named = nn.ParameterDict({"scale": torch.randn(3, **DOUBLE)})
        self.layers = nn.ModuleDict({"a": nn.Linear(3, 3, **DOUBLE)})

    def forward(self, x):
        for parameter in self.listed:
            x = x + parameter
        return self.layers["a"](x) * self.named["scale"]


class Attributes(nn.Module):
    """Tensors of every kind that a module can hold, and a place for each kind left empty."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, **DOUBLE))
        self.frozen = nn.Parameter(torch.randn(3, **DOUBLE), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3, **DOUBLE))
        self.register_buffer("table", torch.tensor([2, 0, 1]))
        self.register_buffer("temporary", torch.randn(3, **DOUBLE), persistent=False)
        self.register_buffer("learned", torch.randn(3, **DOUBLE).requires_grad_())
        self.register_parameter("no_parameter", None)
        self.register_buffer("no_buffer", None)
        self.register_module("no_module", None)
        self.plain = torch.randn(3, **DOUBLE)

    def forward(self, x):
        x = x * self.weight + self.frozen * self.temporary * self.learned + self.plain
        return x[:, self.table]


class Embedded(nn.Module):
    def __init__(self, *, sparse):
        super().__init__()
        self.table = nn.Embedding(4, 3, sparse=sparse, **DOUBLE)

    def forward(self, x):
        return self.table((x[:, 0] > 0).long() + 2)


class FirstOutput(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


MODULES = {
    "sequential": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
    "shared weights, modules and buffers": Tied,
    "lists and dicts of parameters": Lists,
    "buffers, frozen and plain tensors, None": Attributes,
    "embedding": lambda: Embedded(sparse=False),
    "embedding with sparse gradients": lambda: Embedded(sparse=True),
    "LSTM": lambda: FirstOutput(nn.LSTM(3, 2, num_layers=2, bidirectional=True, **DOUBLE)),
    "batch norm in training": lambda: nn.BatchNorm1d(3, **DOUBLE),
    "batch norm in evaluation": lambda: nn.BatchNorm1d(3, **DOUBLE).eval(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).double(),
}

all_modules = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def gradients(module):
    tensors = [*module.named_parameters(), *module.named_buffers()]
    found = {name: tensor.grad for name, tensor in tensors}
    sparse = {name for name, grad in found.items() if grad is not None and grad.is_sparse}
    return {name: grad.coalesce() if name in sparse else grad for name, grad in found.items()}


@all_modules
def test_replicas_compute_what_the_original_computes_and_their_gradients_add_up_in_it(make):
    module = make()
    plain = copy.deepcopy(module)
    for factor, replica in zip([1, 10, 100], replicate(module, CORES), strict=True):
        x = torch.randn(5, 3, **DOUBLE)
        output, expected = replica(x), plain(x)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
        (factor * output.square().sum()).backward()
        (factor * expected.square().sum()).backward()
        assert list(replica.parameters()) == []
    torch.testing.assert_close(gradients(module), gradients(plain), rtol=0, atol=1e-9)
    assert any(gradient is not None for gradient in gradients(plain).values())


def test_gradient_of_a_gradient_goes_through_the_replicas_too():
    module, x = (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
        torch.ones(2, 3),
    )
    weights, found = [layer.weight for layer in module[::2]], []
    for net in (module, *replicate(module, CORES)):
        slopes = torch.autograd.grad(net(x.double()).sum(), weights, create_graph=True)
        found.append(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), weights))
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=0, atol=1e-12)


def test_first_replica_has_the_originals_memory_and_the_others_have_their_own():
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    replicas = replicate(module, CORES)
    with torch.no_grad():
        module.weight.mul_(5)
        replicas[2].weight.mul_(7)
    assert [replica.weight.item() for replica in replicas] == [5, 1, 7]


def test_writing_into_a_buffer_of_the_first_replica_is_kept_and_of_the_others_lost():
    module = nn.BatchNorm1d(1)
    for replica, value in zip(replicate(module, CORES), [3.0, 4.0, 5.0], strict=True):
        replica.running_mean.fill_(value)
        replica.num_batches_tracked.add_(1)
    assert module.running_mean.tolist() == [3]
    assert module.num_batches_tracked.item() == 1


def test_what_the_original_shares_each_replica_shares():
    replicas = replicate(Tied(), CORES)
    for replica in replicas:
        assert replica.into.weight is replica.out_of.weight
        assert replica.norm is replica.same_norm
        assert replica.mean is replica.norm.running_mean
    assert len({id(replica.into.weight) for replica in replicas}) == 3
    assert len({id(replica.norm) for replica in replicas}) == 3


def test_weights_of_a_replica_are_no_leaves_and_what_is_no_weight_stays_as_it_is():
    module = Attributes()
    for replica in replicate(module, CORES):
        assert replica.plain is module.plain
        assert not isinstance(replica.weight, nn.Parameter)
        assert [replica.weight.requires_grad, replica.weight.is_leaf] == [True, False]
        assert [replica.learned.requires_grad, replica.learned.is_leaf] == [True, False]
        assert not replica.frozen.requires_grad
        assert not replica.temporary.requires_grad
        assert replica.table.dtype == torch.int64


def test_hooks_of_the_original_run_in_each_replica():
    module, ran = nn.Sequential(nn.Linear(2, 2)), []
    module.register_forward_pre_hook(lambda module, inputs: ran.append("before"))
    module[0].register_forward_hook(lambda module, inputs, output: ran.append(module))
    module.register_full_backward_hook(lambda module, into, out_of: ran.append("backward"))
    replicas = replicate(module, CORES)
    for replica in replicas:
        replica(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert ran == [seen for replica in replicas for seen in ("before", replica[0], "backward")]


def test_changing_a_replica_leaves_the_original_alone():
    module = Tied()
    modules, buffers = dict(module.named_modules()), dict(module.named_buffers())
    for replica in replicate(module, CORES):
        replica.extra = 1
        replica.into = nn.Identity()
        replica.norm.register_buffer("running_mean", None)
        replica.register_forward_hook(lambda *_: None)
    assert not hasattr(module, "extra")
    assert dict(module.named_modules()) == modules
    assert {name: id(buffer) for name, buffer in module.named_buffers()} == {
        name: id(buffer) for name, buffer in buffers.items()
    }


@all_modules
def test_replicating_leaves_the_original_as_it_was(make):
    module = make()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    parameters = [*map(id, module.parameters()), *map(id, module.buffers())]
    replicate(module, CORES)
    torch.testing.assert_close(dict(module.state_dict()), state, rtol=0, atol=0)
    assert [*map(id, module.parameters()), *map(id, module.buffers())] == parameters
    twin = copy.deepcopy(module)
    torch.testing.assert_close(dict(twin.state_dict()), state, rtol=0, atol=0)
    assert len(list(twin.parameters())) == len(list(module.parameters()))


def test_under_inference_mode_the_replicas_compute_and_the_original_still_trains():
    module, x = Tied().eval(), torch.randn(2, 3, **DOUBLE)
    expected = module(x).detach()
    with torch.inference_mode():
        for replica in replicate(module, CORES):
            torch.testing.assert_close(replica(x), expected, rtol=0, atol=1e-12)
    module(x).sum().backward()
    assert module.into.weight.grad is not None


@pytest.mark.parametrize(("layer", "name"), [(0, "weight"), (1, "bias"), (1, "running_var")])
def test_tensor_on_another_device_is_refused_by_name(layer, name):
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    holder = module[layer]._parameters if name != "running_var" else module[layer]._buffers
    holder[name] = holder[name].to("meta")
    with pytest.raises(ValueError, match=f"first device, but {layer}.{name} is on meta; move it"):
        replicate(module, CORES)


# With GPUs: torch's own function gives the same. The twins of these tests are those above.

# A plain tensor attribute stays where it is: a module that computes with one runs there only.
# torch's own function cannot add the sparse gradients of replicas on one GPU.
ON_GPUS = {
    name: make
    for name, make in MODULES.items()
    if make is not Attributes and "sparse gradients" not in name
}


def on_gpus(verb, module, places, devices):
    """Outputs of the replicas that `verb` makes; the module's gradients and buffers after them."""
    outputs, loss = [], 0
    for factor, (replica, device) in enumerate(zip(verb(module, places), devices, strict=True), 1):
        generator = torch.Generator().manual_seed(factor)
        x = torch.randn(5, 3, **DOUBLE, generator=generator).to(device)
        outputs.append(replica(x))
        loss = loss + factor * outputs[-1].square().sum().to("cuda:0")
    loss.backward()
    return [output.detach() for output in outputs], gradients(module), dict(module.named_buffers())


@pytest.mark.parametrize("make", ON_GPUS.values(), ids=ON_GPUS)
@pytest.mark.parametrize("devices", GPUS)
def test_replicas_are_those_of_torch_on_gpus(devices, make):
    module = make().to("cuda:0")
    twin = copy.deepcopy(module)
    ours = on_gpus(replicate, module, devices, devices)
    theirs = on_gpus(nn.parallel.replicate, twin, indices(devices), devices)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
