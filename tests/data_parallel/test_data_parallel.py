"""`DataParallel`: the same numbers as the module alone, on any number of devices."""

import copy
import io
import threading
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from verbs import DOUBLE, GPUS, WAIT_S, assert_same, indices
from ways import WAYS

from mpcourse.data_parallel.replicas import DataParallel
from mpcourse.devices.devices import get_devices

HOME = get_devices(1)[0].device  # a GPU where there is one
EXACT = {"rtol": 1e-12, "atol": 1e-12}
ON_GPUS = {"rtol": 0, "atol": 1e-9}


@pytest.fixture(autouse=True)
def _made_at_home(request):
    """Make modules and batches where `DataParallel` wants its module; for `devices` on the CPU."""
    with torch.device("cpu") if "devices" in request.fixturenames else HOME:
        yield


class Scored(NamedTuple):
    scores: torch.Tensor
    hidden: torch.Tensor


class TwoInputs(nn.Module):
    """Takes what a call can carry: tensors by place and by name, a number, text, `None`, a list."""

    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(3, 3, 2, **DOUBLE)

    def forward(self, x, y, *, shift, scale=1.0, sign="+", mask=None, powers=()):
        out = self.bilinear(x, y) * scale + shift
        while powers:  # uses the list up
            out = out ** powers.pop()
        return out if sign == "+" and mask is None else -out


class Returns(nn.Module):
    """A linear layer that packs its output the way `pack` says."""

    def __init__(self, pack):
        super().__init__()
        self.linear = nn.Linear(3, 2, **DOUBLE)
        self.pack = pack

    def forward(self, x):
        return self.pack(self.linear(x))


class RowsOfLSTM(nn.Module):
    """Rows first in all that comes out; the hidden state of `nn.LSTM` has them in dimension 1."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 2, 2, batch_first=True, bidirectional=True, **DOUBLE)

    def forward(self, x):
        output, (hidden, cell) = self.lstm(x)
        return output, {"hidden": hidden.transpose(0, 1), "cell": cell.transpose(0, 1)}


class MeanSquare(nn.Module):
    """A module that ends in its loss, a scalar."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False, **DOUBLE)
        nn.init.ones_(self.linear.weight)

    def forward(self, x):
        return self.linear(x).square().mean()


class NoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self):
        return 3 * self.weight


def mlp():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def conv_net():
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)]
    net = nn.Sequential(*layers)
    net(torch.randn(8, 2, 5, 5))  # gives the batch norm statistics to use
    return net.double().eval()


def rows_of(*shape):
    return lambda rows: ((torch.randn(rows, *shape, **DOUBLE),), {})


def two_inputs(rows):
    x, y = torch.randn(2, rows, 3, **DOUBLE)
    kwargs = {"shift": torch.randn(rows, 1, **DOUBLE), "scale": 0.1, "sign": "-", "mask": None}
    return (x, y), kwargs | {"powers": [1, 2]}


def plain_kwargs(rows):
    x, y = torch.randn(2, rows, 3, **DOUBLE)
    return (x, y), {"shift": 1.0, "mask": None, "powers": [2]}


def only_kwargs(rows):
    x, y = torch.randn(2, rows, 3, **DOUBLE)
    return (), {"x": x, "y": y, "shift": 0.5}


CASES = {  # name -> the module, and what makes its arguments for a number of rows
    "MLP": (mlp, rows_of(3)),
    "conv net in evaluation": (conv_net, rows_of(2, 5, 5)),
    "LSTM": (RowsOfLSTM, rows_of(4, 3)),
    "tensors by place and by name": (TwoInputs, two_inputs),
    "no tensor among the keywords": (TwoInputs, plain_kwargs),
    "keywords alone": (TwoInputs, only_kwargs),
    "dict": (lambda: Returns(lambda y: {"y": y, "nested": [{"z": y + 1}], "no": None}), rows_of(3)),
    "tuple": (lambda: Returns(lambda y: (y, (2 * y,), None)), rows_of(3)),
    "named tuple": (lambda: Returns(lambda y: Scored(y, y.square())), rows_of(3)),
    "sparse embedding": (
        lambda: nn.Embedding(5, 3, sparse=True, **DOUBLE),
        lambda rows: ((torch.arange(rows) % 4,), {}),
    ),
    "frozen layer": (
        lambda: nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2)).double(),
        rows_of(3),
    ),
}

all_cases = pytest.mark.parametrize(("make", "arguments"), CASES.values(), ids=CASES)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [tensor for field in value or () for tensor in tensors_in(field)]


def loss_of(output, dim=0):
    """A sum over the rows, in which every row counts differently."""
    loss = 0
    for tensor in tensors_in(output):
        shape = [1] * tensor.dim()
        shape[dim] = -1
        weights = torch.arange(1, tensor.size(dim) + 1, **DOUBLE).reshape(shape).to(tensor.device)
        loss = loss + (weights * tensor.square()).sum()
    return loss


def gradients(module):
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {
        name: gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient
        for name, gradient in found.items()
    }


def step(module, arguments, dim=0):
    """Forward and backward: the output, and the gradient of every parameter."""
    args, kwargs = copy.deepcopy(arguments)
    output = module(*args, **kwargs)
    loss_of(output, dim).backward()
    return output, gradients(module)


def assert_same_step(parallel, module, call, dim=0, tolerance=EXACT):
    """Outputs and gradients of the one are those of the other."""
    output, found = step(parallel, call, dim)
    expected_output, expected = step(module, call, dim)
    assert_same(output, expected_output, **tolerance)
    assert_same(list(found.values()), list(expected.values()), **tolerance)


@all_cases
@pytest.mark.parametrize("count", range(1, 5))
def test_outputs_and_gradients_are_those_of_the_module_alone(count, make, arguments):
    module = make()
    for rows in range(1, 10):
        parallel = DataParallel(copy.deepcopy(module), get_devices(count))
        assert_same_step(parallel, copy.deepcopy(module), arguments(rows))


@pytest.mark.parametrize("count", range(1, 5))
def test_dim_1_cuts_and_joins_the_batch_of_an_lstm(count):
    module = nn.LSTM(3, 2, 2, **DOUBLE)  # (time, batch, features); hidden state (layer, batch, …)
    for rows in range(1, 6):
        call = ((torch.randn(4, rows, 3, **DOUBLE),), {})
        parallel = DataParallel(copy.deepcopy(module), get_devices(count), dim=1)
        assert_same_step(parallel, copy.deepcopy(module), call, 1)


@pytest.mark.parametrize("count", range(1, 5))
def test_batch_norm_in_training_is_the_module_alone_on_each_chunk(count):
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4)]
    module = nn.Sequential(*layers).double()
    batch = torch.randn(8, 3, **DOUBLE)
    on_first, alone = copy.deepcopy(module), copy.deepcopy(module)
    output = DataParallel(module, get_devices(count))(batch)
    on_first(batch.chunk(count)[0])
    assert_same(dict(module.named_buffers()), dict(on_first.named_buffers()), **EXACT)
    expected = torch.cat([alone(chunk) for chunk in batch.chunk(count)])
    torch.testing.assert_close(output, expected, **EXACT)
    loss_of(output).backward()
    loss_of(expected).backward()
    assert_same(gradients(module), gradients(alone), **EXACT)


# What a training loop does around the calls. Each is done to the module alone and to the parallel
# one; what it returns, and every gradient afterwards, has to be the same.


def accumulated(net, step):
    return step(7), step(2)


def penalty(net, _):
    batch = batch_of(5).requires_grad_()
    (slope,) = torch.autograd.grad(net(batch).square().sum(), batch, create_graph=True)
    slope.square().sum().backward()
    return slope


def hooks_of_parameters(net, step):
    seen = []
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    accumulated(net, step)
    return seen


def checkpointed(net, _):
    return checkpoint(net, batch_of(6).requires_grad_(), use_reentrant=False)


def complex_numbers(net, _):
    net.to(torch.complex128)
    net(batch_of(5) + 1j * batch_of(5)).abs().square().sum().backward()


def saved_and_loaded(net, step):
    accumulated(net, step)
    state = {name.removeprefix("module."): 2 * value for name, value in net.state_dict().items()}
    prefix = "module." if isinstance(net, DataParallel) else ""
    net.load_state_dict({prefix + name: value for name, value in state.items()})
    return net(batch_of(3)), state


def functional(net, _):
    weights = {name: 2 * value.detach() for name, value in net.named_parameters()}
    return torch.func.functional_call(net, weights, batch_of(4))


def batch_of(rows):
    return torch.linspace(-1, 2, 3 * rows, **DOUBLE).reshape(rows, 3)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "way",
    [
        *(*WAYS, accumulated, penalty, hooks_of_parameters, checkpointed, complex_numbers),
        *(saved_and_loaded, functional),
    ],
)
def test_what_a_training_loop_does_has_the_same_effect_as_on_the_module_alone(way, count):
    module = mlp()
    parallel = DataParallel(copy.deepcopy(module), get_devices(count))

    def step_of(net):
        def step(rows):
            loss = loss_of(net(batch_of(rows)))
            loss.backward()
            return loss.detach()

        return step

    expected, found = way(module, step_of(module)), way(parallel, step_of(parallel))
    assert_same(found, expected, **EXACT)
    assert_same(list(parallel.parameters()), list(module.parameters()), **EXACT)
    assert_same(list(gradients(parallel).values()), list(gradients(module).values()), **EXACT)


def test_scalars_become_a_vector_with_one_entry_for_each_chunk_of_several_devices():
    batch = torch.tensor([[1.0], [3.0], [2.0]], **DOUBLE)
    for count, losses in {2: [5.0, 4.0], 3: [1.0, 9.0, 4.0], 4: [1.0, 9.0, 4.0]}.items():
        parallel = DataParallel(MeanSquare(), get_devices(count))
        assert parallel(batch).tolist() == losses
        assert parallel(batch[:1]).tolist() == [1]
    loss = DataParallel(MeanSquare(), get_devices(1))(batch[:2])
    assert (loss.shape, loss.item()) == ((), 5)


@pytest.mark.parametrize("count", range(1, 5))
def test_call_without_inputs_runs_once(count):
    parallel, ran = DataParallel(NoInputs(), get_devices(count)), []
    parallel.module.register_forward_hook(lambda *_: ran.append(1))
    output = parallel()
    output.sum().backward()
    assert output.tolist() == [3, 6]
    assert parallel.module.weight.grad.tolist() == [3, 3]
    assert ran == [1]


def test_every_device_runs_its_replica_in_its_own_worker_at_the_same_time():
    all_there, threads = threading.Barrier(3), []

    def meet(*_):
        all_there.wait(WAIT_S)
        threads.append(threading.get_ident())

    parallel = DataParallel(mlp(), get_devices(3))
    parallel.module.register_forward_pre_hook(meet)
    parallel(torch.randn(3, 3, **DOUBLE))
    assert set(threads) == {device.run(threading.get_ident) for device in get_devices(3)}


def test_whole_object_is_saved_loaded_and_copied():
    x, file = torch.randn(5, 3, **DOUBLE), io.BytesIO()
    parallel = DataParallel(mlp(), get_devices(2))
    torch.save(parallel, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(parallel)):
        assert other.devices == parallel.devices
        torch.testing.assert_close(other(x), parallel(x), **EXACT)
        assert other.module[0].weight is not parallel.module[0].weight


@pytest.mark.parametrize(("outer", "inner"), [(2, 2), (1, 3), (3, 1)])
def test_data_parallel_inside_data_parallel_is_the_module_alone(outer, inner):
    module = mlp()
    parallel = DataParallel(copy.deepcopy(module), get_devices(inner))
    nested = DataParallel(parallel, get_devices(outer))
    assert_same_step(nested, module, ((torch.randn(9, 3, **DOUBLE),), {}))


@pytest.mark.parametrize("index", [0, 1])
def test_worker_of_one_of_its_devices_may_call_it(index):
    module, call = mlp(), ((torch.randn(5, 3, **DOUBLE),), {})
    parallel = DataParallel(copy.deepcopy(module), get_devices(2))
    get_devices(2)[index].submit(assert_same_step, parallel, module, call).result(WAIT_S)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("count", [1, 3])
def test_without_gradients_the_output_is_the_same_and_asks_for_none(count, mode):
    module, x = mlp(), torch.randn(5, 3, **DOUBLE)
    with mode():
        output = DataParallel(module, get_devices(count))(x)
    torch.testing.assert_close(output, module(x), **EXACT)
    assert not output.requires_grad
    assert output.is_inference() == (mode is torch.inference_mode)


@pytest.mark.parametrize(
    ("devices", "output_device", "message"),
    [
        ([], None, "devices is empty; name at least one"),
        (["cpu", "cuda:99"], None, "this machine has no device 'cuda:99'"),
        (["cpu", "cpu"], "cuda:99", "this machine has no device 'cuda:99'"),
    ],
)
def test_device_that_does_not_exist_is_refused_at_once(devices, output_device, message):
    with pytest.raises(ValueError, match=message):
        DataParallel(mlp(), devices, output_device)


@pytest.mark.parametrize("count", [1, 2])
def test_module_on_another_device_is_refused_by_name(count):
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ValueError, match=rf"must be on {HOME}, .* but 1\.weight is on"):
        DataParallel(module, get_devices(count))(torch.ones(2, 3))


# With GPUs: torch's own class gives the same. The twins of these tests are those above.


@all_cases
@pytest.mark.parametrize("devices", GPUS)
def test_outputs_and_gradients_are_those_of_torch_on_gpus(devices, make, arguments):
    module = make().to("cuda:0")
    # with one row and two GPUs, torch hands keywords without a tensor to a replica without inputs
    for rows in range(len(devices), 10):
        ours = DataParallel(copy.deepcopy(module), devices)
        theirs = nn.DataParallel(copy.deepcopy(module), indices(devices))
        assert_same_step(ours, theirs, arguments(rows), tolerance=ON_GPUS)


@pytest.mark.parametrize("devices", GPUS)
def test_batch_norm_in_training_is_torchs_on_gpus(devices):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double().to("cuda:0")
    twin, batch = copy.deepcopy(module), torch.randn(8, 3, **DOUBLE)
    output = DataParallel(module, devices)(batch)
    expected = nn.DataParallel(twin, indices(devices))(batch)
    assert_same(output, expected, **ON_GPUS)
    assert_same(dict(module.named_buffers()), dict(twin.named_buffers()), **ON_GPUS)


@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0")
@pytest.mark.parametrize("devices", GPUS)
def test_scalars_are_torchs_on_gpus(devices):
    module, batch = MeanSquare().to("cuda:0"), torch.randn(5, 1, **DOUBLE)
    output = DataParallel(module, devices)(batch)
    expected = nn.DataParallel(module, indices(devices))(batch)
    torch.testing.assert_close(output, expected, **EXACT)


@pytest.mark.gpu
@pytest.mark.parametrize("count", range(2, 5))
@all_cases
def test_shares_of_one_gpu_give_what_the_module_gives(make, arguments, count):
    module = make().to("cuda:0")
    for rows in range(1, 10):
        parallel = DataParallel(copy.deepcopy(module), ["cuda:0"] * count)
        assert_same_step(parallel, copy.deepcopy(module), arguments(rows), tolerance=ON_GPUS)


@pytest.mark.two_gpus
def test_outputs_come_to_the_output_device():
    module, batch = mlp().to("cuda:0"), torch.randn(5, 3, **DOUBLE)
    for target in ("cpu", "cuda:0", "cuda:1"):
        output = DataParallel(module, ["cuda:0", "cuda:1"], target)(batch)
        assert output.device == torch.device(target)
        assert_same(output.cpu(), module(batch.to("cuda:0")).cpu(), **ON_GPUS)
