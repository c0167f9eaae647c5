"""Channels removed give what channels of zeros give, and layers are really smaller."""

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from pruned import normed_net, pruned
from torch import nn

from mpcourse.pruning import (
    Link,
    channel_links,
    channel_norms,
    layer_masks,
    remove_channels,
    zero_channels,
)
from mpcourse.splitting import ToyModel
from mpcourse.training.nets import conv_net, lenet_300_100

IMAGES = torch.randn(6, 1, 28, 28)


def with_statistics(model: nn.Module) -> nn.Module:
    """Give batch norms weights, shifts and statistics as if they had been trained."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(norm.weight, 1, 0.2)
            nn.init.normal_(norm.bias, 0.3, 0.2)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    return model


def half(model: nn.Module, share: float = 0.5) -> dict[str, torch.Tensor]:
    return layer_masks(channel_norms(model, layers=channel_links(model)), share)


@pytest.mark.parametrize("make", [conv_net, normed_net])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_removing_channels_of_the_convolutional_net_is_zeroing_them(make, training, share):
    model = with_statistics(make()).train(training)
    masks = half(model, share)
    output = zero_channels(model, masks)(IMAGES)
    torch.testing.assert_close(remove_channels(model, masks)(IMAGES), output, rtol=0, atol=1e-5)
    if share:
        assert not torch.allclose(output, model(IMAGES), atol=1e-3)


@pytest.mark.parametrize("layer", ["conv1", "conv2", "fc1"])
def test_one_layer_alone_loses_channels_and_its_reader_inputs(layer):
    model = with_statistics(normed_net()).eval()
    mask = torch.arange(getattr(model, layer).weight.shape[0]) % 3 != 1
    zeroed = zero_channels(model, {layer: mask})
    slim = remove_channels(model, {layer: mask})
    torch.testing.assert_close(slim(IMAGES), zeroed(IMAGES), rtol=0, atol=1e-5)
    changed = {n for n, p in model.named_parameters() if slim.get_parameter(n).shape != p.shape}
    reader = {"conv1": "conv2", "conv2": "fc1", "fc1": "fc2"}[layer]
    norms = {"conv1": "bn1", "conv2": "bn2"}.get(layer)
    expected = {f"{layer}.weight", f"{layer}.bias", f"{reader}.weight"}
    assert changed == expected | ({f"{norms}.weight", f"{norms}.bias"} if norms else set())


def test_the_given_model_never_changes_and_the_slim_one_is_really_smaller_and_trains():
    model = normed_net()
    before = copy.deepcopy(model.state_dict())
    slim = remove_channels(model, half(model))
    sizes = [slim.conv2.weight.shape, slim.bn2.running_var.shape, slim.fc1.weight.shape]
    assert sizes == [(32, 16, 3, 3), (32,), (50, 288)]
    told = (slim.conv2.in_channels, slim.conv2.out_channels, slim.bn2.num_features)
    assert (*told, slim.fc1.in_features, slim.fc1.out_features) == (16, 32, 32, 288, 50)
    zero_channels(model, half(model))
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    optimizer = torch.optim.SGD(slim.parameters(), lr=0.1)
    slim(IMAGES).square().sum().backward()
    optimizer.step()
    assert slim.conv2.weight.grad.shape == (32, 16, 3, 3)


def tied() -> nn.Sequential:
    model = nn.Sequential(OrderedDict({name: nn.Linear(4, 4) for name in "abc"}))
    model.c.weight = model.a.weight
    return model


class Residual(nn.Sequential):
    def forward(self, rows):
        return rows + super().forward(rows)


class Sigmoid(nn.Linear):
    def forward(self, rows):
        return super().forward(rows).sigmoid()


class Shifted(nn.ReLU):
    def forward(self, rows):
        return super().forward(rows) + 1


LINEAR, CONV, NORM = nn.Linear(4, 4), nn.Conv2d(4, 4, 1), nn.BatchNorm1d(4)
CHANNELS_LAST = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
ATTENTION = nn.MultiheadAttention(4, 1)  # its out_proj is a Linear layer
CANNOT_GO = [
    (nn.Sequential(LINEAR, nn.Sigmoid(), nn.Linear(4, 4)), "0", r"goes into 1 \(Sigmoid\)"),
    (nn.Sequential(CONV, nn.Flatten(2), nn.Linear(4, 4)), "0", r"1 \(Flatten\)"),
    (nn.Sequential(CONV, nn.Conv2d(4, 4, 1, groups=2)), "0", "grouped convolution"),
    (nn.Sequential(CONV, nn.Linear(4, 4)), "0", "4 channels become 4 inputs in a way not known"),
    (
        nn.Sequential(CONV, nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 4, 1)),
        "0",
        "1 has no weight and bias that could be set to zero",
    ),
    (nn.Sequential(LINEAR, nn.BatchNorm1d(6), nn.Linear(4, 4)), "0", "1 has 6 features for 4"),
    (nn.Sequential(nn.Linear(4, 4), LINEAR, LINEAR), "0", "the weight of 1 is also 2.weight"),
    (nn.Sequential(nn.Linear(4, 4), NORM, LINEAR, NORM), "0", "the weight of 1 is also 3.weight"),
    (tied(), "b", "the weight of c is also a.weight"),
    (nn.Sequential(ATTENTION, LINEAR), "0.out_proj", "inside a layer that is no Sequential"),
    (nn.Sequential(Residual(nn.ReLU(), LINEAR), LINEAR), "0.1", "or has a forward of its own"),
    (nn.Sequential(LINEAR, Residual(nn.ReLU(), LINEAR), LINEAR), "0", r"goes into 1 \(Residual"),
    (nn.Sequential(Sigmoid(4, 4), Sigmoid(4, 4)), "0", "a Sigmoid, which may have a forward"),
    (nn.Sequential(LINEAR, Shifted(), nn.Linear(4, 4)), "0", r"goes into 1 \(Shifted\)"),
    (nn.Sequential(LINEAR, nn.AvgPool2d(3, 1, 1), nn.Linear(4, 4)), "0", r"1 \(AvgPool2d\)"),
    (
        nn.Sequential(nn.Conv1d(4, 4, 1), nn.MaxPool2d(3, 1, 1), nn.Conv1d(4, 4, 1)),
        "0",
        r"goes into 1 \(MaxPool2d\)",
    ),
    (
        nn.Sequential(nn.Linear(4, 4), nn.utils.spectral_norm(nn.Linear(4, 4))),
        "0",
        "the weight of 1 is computed from other parameters",
    ),
    (lenet_300_100(), "fc3", "its channels are the model's outputs; those of these can: fc1, fc2"),
    (lenet_300_100(), "relu1", "the model has no such layer with a weight"),
]


@pytest.mark.parametrize(("model", "name", "reason"), CANNOT_GO)
@pytest.mark.parametrize("change", [remove_channels, zero_channels])
def test_channels_that_cannot_go_are_refused_with_the_reason(model, name, reason, change):
    with pytest.raises(ValueError, match=f"channels of {name} cannot be removed.*{reason}"):
        change(model, {name: torch.arange(4) > 0})


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ([nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False)], (3, 4)),
        ([nn.Linear(4, 6), nn.Dropout().eval(), nn.Linear(6, 2)], (0, 4)),
        ([nn.Linear(4, 6).double(), nn.Linear(6, 2).double()], (2, 3, 4)),
        ([nn.Conv1d(4, 6, 2), nn.BatchNorm1d(6), nn.Conv1d(6, 2, 2, padding=1)], (3, 4, 5)),
        # a batch norm with a feature for every pixel
        ([nn.Conv2d(4, 6, 3), nn.Flatten(), nn.BatchNorm1d(54), nn.Linear(54, 3)], (3, 4, 5, 5)),
        ([nn.Conv3d(4, 6, 1), nn.ReLU(), nn.Conv3d(6, 2, 1)], (3, 4, 2, 2, 2)),
        ([CHANNELS_LAST, nn.MaxPool2d(2, padding=1), nn.Conv2d(6, 2, 1)], (3, 4, 7, 7)),
        ([nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), nn.Conv2d(6, 2, 3)], (3, 4, 7, 7)),
    ],
)
def test_a_slim_model_is_a_module_like_any_other(layers, shape):
    model, calls = with_statistics(nn.Sequential(*layers)), []
    model[0].weight.requires_grad_(False)
    rows = torch.randn(shape, dtype=model[0].weight.dtype)
    masks = {"0": torch.tensor([1, 0, 0, 1, 1, 0])}
    expected, slim = zero_channels(model, masks), remove_channels(model, masks)
    modes = [module.training for module in model.modules()]
    assert [module.training for module in slim.modules()] == modes
    assert [p.requires_grad for p in slim.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]
    torch.testing.assert_close(slim(rows), expected(rows), rtol=0, atol=1e-6)
    twin = remove_channels(model, masks)
    twin.load_state_dict(slim.state_dict())
    for other in (twin, copy.deepcopy(slim), pickle.loads(pickle.dumps(slim))):
        torch.testing.assert_close(other.eval()(rows), slim.eval()(rows))
    model[0].register_forward_hook(lambda *_: calls.append(1))
    remove_channels(model, masks)(rows)
    assert calls == [1]


def test_links_lead_through_sequentials_inside_one():
    inner = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 4, 3), relu=nn.ReLU()))
    head = nn.Sequential(nn.AvgPool2d(13), nn.Flatten(), nn.Linear(16, 3))
    model = nn.Sequential(OrderedDict(block=inner, head=head))
    assert channel_links(model) == {"block.conv": Link("block.conv", (), "head.2", 4)}
    masks = half(model)
    output = zero_channels(model, masks)(IMAGES)
    torch.testing.assert_close(remove_channels(model, masks)(IMAGES), output, rtol=0, atol=1e-5)


@pytest.mark.parametrize("change", [remove_channels, zero_channels])
@pytest.mark.parametrize(
    ("masks", "problem"),
    [
        ({}, "masks is empty"),
        ({"conv1": torch.zeros(32)}, "the mask of conv1 removes all of its 32 channels"),
        ({"conv1": torch.ones(31)}, "conv1 has 32 channels; its mask has 31 entries"),
        ({"conv1": torch.rand(32)}, "the mask of conv1 has values other than 0 and 1"),
    ],
)
def test_bad_masks_of_channels_are_refused(change, masks, problem):
    with pytest.raises(ValueError, match=problem):
        change(conv_net(), masks)


def test_other_models_than_a_sequential_without_masks_are_refused():
    with pytest.raises(ValueError, match=r"removed from a Sequential.*; got ToyModel"):
        remove_channels(ToyModel(), {"net1": torch.arange(4) > 0})
    with pytest.raises(ValueError, match=r"without a forward of its own; got Residual"):
        remove_channels(Residual(LINEAR, nn.Linear(4, 4)), {"0": torch.arange(4) > 0})
    model = pruned(conv_net(), 0.5)
    with pytest.raises(ValueError, match=r"conv1 has a mask: call make_permanent\(model\) before"):
        remove_channels(model, {"conv1": torch.arange(32) > 3})
