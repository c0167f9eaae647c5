"""Cuts are the best ones, stages are the model's own layers, and split ResNet50s are ResNet50."""

import copy
import functools
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models import resnet50

from mpcourse.devices.devices import get_devices
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.splitting.resnet import ModelParallelResNet50, PipelineParallelResNet50
from mpcourse.splitting.splits import ToyModel, balanced_bounds, layer_costs, split_sequential
from mpcourse.training.nets import mnist_net

close = functools.partial(torch.testing.assert_close, check_device=False)  # GPUs against the host


def costliest(costs, bounds):
    return max(sum(costs[a:b]) for a, b in itertools.pairwise(bounds))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.data())
def test_no_other_cut_is_better(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    bounds = balanced_bounds(costs, stages)
    assert all(a < b for a, b in itertools.pairwise(bounds))
    inner = itertools.combinations(range(1, len(costs)), stages - 1)
    best = min(costliest(costs, [0, *cut, len(costs)]) for cut in inner)
    assert costliest(costs, bounds) == best


def test_stages_are_the_model_s_own_layers_under_their_names():
    model = mnist_net()
    stages = split_sequential(model, 2, by="parameters")
    assert [list(stage._modules) for stage in stages] == [
        ["flatten", "fc1"],
        ["relu1", "fc2", "relu2", "fc3"],
    ]
    assert list(itertools.chain(*stages)) == list(model)


class Residual(nn.Sequential):
    def forward(self, rows):
        return rows + super().forward(rows)


class Pair(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(width, width, bias=False), nn.Dropout().eval())


def with_hook(module):
    module.register_forward_hook(lambda module, inputs, output: output * 3)
    return module


def with_forward(module):
    module.forward = lambda rows: rows
    return module


LAYER, NAN, INF = nn.Linear(4, 4), float("nan"), float("inf")
ROWS = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (Pair(4), ROWS),  # a class of its own, with nn.Sequential's forward
        (nn.Sequential(LAYER, nn.ReLU(), LAYER), ROWS),
        (nn.Sequential(with_hook(nn.Linear(4, 4)), Residual(nn.Linear(4, 4))), ROWS),
        (nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)), ROWS[:0]),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).eval(), ROWS),
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double(), ROWS.double().t()[:, :3]),
        (nn.Sequential(nn.Conv1d(4, 4, 1, groups=2), nn.Flatten()), ROWS.t()[None]),
    ],
)
def test_the_stages_one_after_the_other_are_the_model(model, rows):
    modes = [module.training for module in model.modules()]
    first, second = split_sequential(model, 2, by="count")
    assert torch.equal(second(first(rows)), model(rows))
    assert {**first.state_dict(), **second.state_dict()}.keys() == model.state_dict().keys()
    assert {*first.parameters(), *second.parameters()} == {*model.parameters()}
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Residual(LAYER, LAYER), "a Sequential without a forward of its own; got Residual"),
        (with_forward(nn.Sequential(LAYER, LAYER)), "without a forward of its own; got Sequential"),
        (nn.ModuleList([LAYER, LAYER]), "got ModuleList"),
        (ToyModel(), "got ToyModel"),
        (with_hook(nn.Sequential(LAYER, LAYER)), "lose the model's forward hooks: put hooks on"),
    ],
)
def test_what_is_more_than_its_layers_is_not_cut(model, message):
    with pytest.raises(ValueError, match=message):
        split_sequential(model, 2)


RELUS = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        *((balanced_bounds, ([1] * 3, n), f"make 1 to 3 stages; got {n}") for n in (0, 4, -1)),
        *((split_sequential, (RELUS, n), f"make 1 to 3 stages; got {n}") for n in (0, 4, -1)),
        (balanced_bounds, ([1, NAN, 2], 2), r"costs are finite and 0 or more; got \[nan\]"),
        (balanced_bounds, ([1, INF, 2], 2), r"costs are finite and 0 or more; got \[inf\]"),
        (balanced_bounds, ([1, -1, 2], 2), r"costs are finite and 0 or more; got \[-1\]"),
        (ToyModel, (get_devices(3),), "cut for 2 devices; got 3"),
        (ModelParallelResNet50, (get_devices(3),), "cut for 2 devices; got 3"),
        *((PipelineParallelResNet50, (n,), "split_size is a whole") for n in (0, -2, 1.5, True)),
    ],
)
def test_numbers_that_make_no_split_are_refused(function, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        function(*given)


def test_costs_by_count_and_parameters():
    model = mnist_net()
    assert layer_costs(model, by="count") == [1.0] * 6
    assert layer_costs(model, by="parameters") == [0, 100480, 0, 8256, 0, 650]
    with pytest.raises(ValueError, match="got 'size'"):
        split_sequential(model, 2, by="size")


@pytest.mark.parametrize(
    ("make", "sample"),
    [
        (ToyModel, torch.randn(5, 10)),
        (lambda: PipelineParallelResNet50(2, num_classes=3), torch.randn(3, 3, 32, 32)),
    ],
    ids=["toy", "resnet"],
)
def test_a_split_model_is_a_module_like_any_other(make, sample):
    model, calls = make().eval(), []
    expected, first = model(sample), next(model.children())
    if isinstance(model, ToyModel):
        alone = copy.deepcopy(model).cpu()
        close(expected, alone.net2(alone.relu(alone.net1(sample))))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(sample), expected)
    twin.load_state_dict(make().state_dict())
    assert not torch.equal(twin(sample), expected)  # a copy shares nothing
    assert model(sample[:0]).shape == (0, *expected.shape[1:])
    assert twin.double()(sample.double()).dtype == torch.float64
    strided = torch.stack([sample, sample], 1)[:, 0]
    torch.testing.assert_close(model(strided), expected)
    first.register_forward_hook(lambda *_: calls.append(1))
    first.requires_grad_(False)
    model(sample).sum().backward()
    assert len(calls) == (1 if isinstance(model, ToyModel) else 2)  # pieces of 2 and 1
    stay = set(first.parameters())
    assert all((p.grad is None) == (p in stay) for p in model.parameters())
    model.eval()
    with torch.inference_mode():
        torch.testing.assert_close(model(sample), expected)


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return resnet50(num_classes=10).double()


@pytest.mark.parametrize("make", [ModelParallelResNet50, PipelineParallelResNet50])
def test_the_state_dict_is_torchvision_s_both_ways(make, resnet):
    model = make(num_classes=10).double()
    assert list(model.state_dict()) == list(resnet.state_dict())
    assert len(list(model.parameters())) == len(set(model.parameters()))
    model.load_state_dict(resnet.state_dict())
    resnet50(num_classes=10).double().load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    "make",
    [
        ModelParallelResNet50,
        lambda **k: PipelineParallelResNet50(split_size=3, **k),
        lambda **k: PipelineParallelResNet50(split_size=20, **k),
    ],
)
def test_the_split_resnet_computes_what_resnet_does(make, resnet):
    model = make(num_classes=10).double()
    model.load_state_dict(resnet.state_dict())
    model.eval()
    resnet.eval()
    for memory_format in (torch.contiguous_format, torch.channels_last):
        images = torch.randn(7, 3, 32, 32).double().to(memory_format=memory_format)
        output = model(images)
        close(output, resnet(images), rtol=1e-9, atol=1e-9)
    output.square().sum().backward()
    expected = torch.autograd.grad(resnet(images).square().sum(), list(resnet.parameters()))
    for ours, theirs in zip(model.parameters(), expected, strict=True):
        close(ours.grad, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_pipeline_over_resnet_s_halves_equals_resnet(schedule, resnet):
    model = ModelParallelResNet50(num_classes=10).double()
    model.load_state_dict(resnet.state_dict())
    model.eval()  # batch norm in training looks at each micro-batch by itself
    resnet.eval()
    images, labels = torch.randn(6, 3, 32, 32).double(), torch.randint(0, 10, (6,))
    pipeline = Pipeline(model.stages(), schedule=schedule, microbatch_size=4)
    pipeline.eval()
    loss = pipeline.step(images, labels, nn.CrossEntropyLoss())
    expected = nn.functional.cross_entropy(resnet(images), labels)
    gradients = torch.autograd.grad(expected, list(resnet.parameters()))
    close(loss, expected.detach())
    for ours, theirs in zip(model.parameters(), gradients, strict=True):
        close(ours.grad, theirs, rtol=1e-8, atol=1e-11)
