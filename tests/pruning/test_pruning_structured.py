"""Channels removed give what channels of zeros give, and layers are really smaller."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.models import resnet18, resnet50

from mpcourse.pruning import (
    Link,
    apply_masks,
    channel_links,
    channel_norms,
    global_masks,
    layer_masks,
    magnitude,
    remove_channels,
    zero_channels,
)
from mpcourse.pruning.links import find_links
from mpcourse.splitting.resnet import ModelParallelResNet50
from mpcourse.training.nets import conv_net, lenet_300_100

IMAGES = torch.randn(6, 1, 28, 28)


def with_statistics(model: nn.Module) -> nn.Module:
    """Give batch norms weights, shifts and statistics as if they had been trained."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.weight, 1, 0.2)
            nn.init.normal_(norm.bias, 0.3, 0.2)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    return model


def half(model: nn.Module, share: float = 0.5) -> dict[str, torch.Tensor]:
    return layer_masks(channel_norms(model, layers=channel_links(model)), share)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.95])
def test_removing_channels_of_the_convolutional_net_is_zeroing_them(batch_norm, training, share):
    model = with_statistics(conv_net(batch_norm)).train(training)
    masks = half(model, share)
    output = zero_channels(model, masks)(IMAGES)
    torch.testing.assert_close(remove_channels(model, masks)(IMAGES), output, rtol=0, atol=1e-5)
    if share:
        assert not torch.allclose(output, model(IMAGES), atol=1e-3)


@pytest.mark.parametrize("layer", ["conv1", "conv2", "fc1"])
def test_one_layer_alone_loses_channels_and_its_reader_inputs(layer):
    model = with_statistics(conv_net(batch_norm=True)).eval()
    mask = torch.arange(getattr(model, layer).weight.shape[0]) % 3 != 1
    zeroed = zero_channels(model, {layer: mask})
    slim = remove_channels(model, {layer: mask})
    torch.testing.assert_close(slim(IMAGES), zeroed(IMAGES), rtol=0, atol=1e-5)
    changed = {n for n, p in model.named_parameters() if slim.get_parameter(n).shape != p.shape}
    reader = {"conv1": "conv2", "conv2": "fc1", "fc1": "fc2"}[layer]
    norms = {"conv1": "bn1", "conv2": "bn2"}.get(layer)
    expected = {f"{layer}.weight", f"{layer}.bias", f"{reader}.weight"}
    assert changed == expected | ({f"{norms}.weight", f"{norms}.bias"} if norms else set())


def test_the_layers_are_really_smaller_and_say_so():
    slim = remove_channels(conv_net(batch_norm=True), half(conv_net(batch_norm=True)))
    assert slim.conv1.weight.shape == (16, 1, 3, 3)
    assert slim.conv2.weight.shape == (32, 16, 3, 3)
    assert slim.bn2.running_var.shape == (32,)
    assert slim.fc1.weight.shape == (50, 32 * 9)
    assert slim.fc2.weight.shape == (10, 50)
    told = (slim.conv2.in_channels, slim.conv2.out_channels, slim.bn2.num_features)
    assert (*told, slim.fc1.in_features, slim.fc1.out_features) == (16, 32, 32, 288, 50)


def test_a_pixel_of_a_channel_stays_with_its_channel_behind_flatten():
    model = conv_net()
    mask = torch.zeros(64, dtype=torch.bool)
    mask[[0, 63]] = True
    slim = remove_channels(model, {"conv2": mask})
    weight = model.fc1.weight
    assert torch.equal(slim.fc1.weight, torch.cat([weight[:, :9], weight[:, -9:]], dim=1))


def test_zero_weights_alone_are_not_a_zero_channel():
    """What torch's ln_structured does leaves the bias: the next layer still sees it."""
    model = conv_net().eval()
    mask = torch.arange(32) != 4
    model.conv1.bias.data[4] = 1.0
    only_weights = copy.deepcopy(model)
    only_weights.conv1.weight.data[4] = 0
    slim = remove_channels(model, {"conv1": mask})
    assert not torch.allclose(only_weights(IMAGES), slim(IMAGES), atol=1e-4)
    only_weights.conv1.bias.data[4] = 0
    torch.testing.assert_close(only_weights(IMAGES), slim(IMAGES), rtol=0, atol=1e-5)


def test_the_given_model_never_changes_and_the_slim_one_trains():
    model = conv_net(batch_norm=True)
    model.conv1.weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    slim = remove_channels(model, half(model))
    zero_channels(model, half(model))
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    optimizer = torch.optim.SGD(slim.parameters(), lr=0.1)
    slim(IMAGES).square().sum().backward()
    optimizer.step()
    assert slim.conv1.weight.grad is None
    assert slim.conv2.weight.grad.shape == (32, 16, 3, 3)


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torch.manual_seed(0)
    return with_statistics(resnet50(num_classes=10)).eval()


def test_the_inner_channels_of_every_bottleneck_can_go(resnet):
    expected = {}
    for stage, blocks in zip((1, 2, 3, 4), (3, 4, 6, 3), strict=True):
        for block in (f"layer{stage}.{index}" for index in range(blocks)):
            for number in (1, 2):
                name, reader = f"{block}.conv{number}", f"{block}.conv{number + 1}"
                expected[name] = Link(name, (f"{block}.bn{number}",), reader, 1)
    assert channel_links(resnet) == expected
    reasons = {name: found for name, found in find_links(resnet).items() if name not in expected}
    assert (
        reasons["layer1.0.conv3"]
        == reasons["layer4.0.downsample.0"]
        == ("its output goes into a sum")
    )
    assert reasons["conv1"] == "its output is used in 2 places"
    assert reasons["fc"] == "its channels are the model's outputs"


def test_removing_channels_of_resnet50_is_zeroing_them(resnet):
    images = torch.randn(2, 3, 32, 32)
    masks = half(resnet, 0.4)
    zeroed, slim = zero_channels(resnet, masks), remove_channels(resnet, masks)
    with torch.no_grad():
        output = zeroed(images)
        scale = output.abs().max()
        torch.testing.assert_close(slim(images) / scale, output / scale, rtol=0, atol=1e-5)
        assert not torch.allclose(output, resnet(images), atol=1e-2 * scale.item())
    assert slim.layer4[2].conv2.weight.shape == (307, 307, 3, 3)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (resnet, slim))
    assert after < 0.65 * before


def test_the_same_in_training_with_the_statistics_of_the_batch(resnet):
    model = copy.deepcopy(resnet).double().train()
    images = torch.randn(4, 3, 32, 32).double()
    masks = half(model)
    zeroed, slim = zero_channels(model, masks), remove_channels(model, masks)
    with torch.no_grad():
        output = zeroed(images)
        torch.testing.assert_close(slim(images), output, rtol=1e-5, atol=1e-5)


def test_resnet18_and_stages_of_a_split_resnet_work_too():
    model = resnet18(num_classes=4).eval()
    assert list(channel_links(model)) == [
        f"layer{i}.{j}.conv1" for i in (1, 2, 3, 4) for j in (0, 1)
    ]
    front = ModelParallelResNet50(num_classes=4).stages()[0].eval()
    masks = half(front)
    images = torch.randn(2, 3, 32, 32)
    assert len(masks) == 14
    with torch.no_grad():
        output = zero_channels(front, masks)(images)
        torch.testing.assert_close(remove_channels(front, masks)(images), output, atol=1e-5, rtol=0)


class Functional(nn.Module):
    """The same kind of net, written with functions instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.more = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3)
        self.first, self.last = nn.Linear(54, 7), nn.Linear(7, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = functional.max_pool2d(functional.relu(self.conv(images)), 2)
        images = functional.avg_pool2d(torch.relu(self.more(images)), 3)
        features = functional.dropout(torch.flatten(images, 1), training=False)
        return self.last(self.first(features).relu())


def test_functions_are_followed_as_modules_are():
    model = Functional()
    assert {name: link.block for name, link in channel_links(model).items()} == {
        "conv": 1,
        "more": 9,
        "first": 1,
    }
    masks = half(model)
    output = zero_channels(model, masks)(IMAGES)
    torch.testing.assert_close(remove_channels(model, masks)(IMAGES), output, rtol=0, atol=1e-5)


def test_a_batch_norm_behind_flatten_has_a_feature_for_every_pixel():
    layers = [nn.Conv2d(1, 4, 3), nn.AvgPool2d(13), nn.Flatten(), nn.BatchNorm1d(16)]
    model = nn.Sequential(*layers, nn.Linear(16, 3)).train()
    nn.init.normal_(model[3].bias)
    masks = {"0": torch.tensor([True, False, True, True])}
    output = zero_channels(model, masks)(IMAGES)
    slim = remove_channels(model, masks)
    torch.testing.assert_close(slim(IMAGES), output, rtol=0, atol=1e-5)
    assert slim[3].num_features == slim[4].in_features == 12


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.b(self.b(self.a(rows)))


class Tied(nn.Sequential):
    def __init__(self) -> None:
        layers = {name: nn.Linear(4, 4) for name in "abc"}
        layers["c"].weight = layers["a"].weight
        super().__init__(OrderedDict(layers))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.idle = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(rows) if rows.sum() > 0 else rows)


class Idle(Branching):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(rows).view(-1, 4))


LINEAR, CONV = nn.Linear(4, 4), nn.Conv2d(4, 4, 1)
CANNOT_GO = [
    (nn.Sequential(LINEAR, nn.Sigmoid(), nn.Linear(4, 4)), "0", r"goes into 1 \(Sigmoid\)"),
    (nn.Sequential(LINEAR, nn.LayerNorm(4), nn.Linear(4, 4)), "0", r"1 \(LayerNorm\)"),
    (nn.Sequential(CONV, nn.Conv2d(4, 4, 1, groups=2)), "0", "grouped convolution"),
    (nn.Sequential(CONV, nn.Linear(4, 4)), "0", "4 channels become 4 inputs in a way not known"),
    (nn.Sequential(LINEAR, nn.Flatten(), nn.Linear(8, 4)), "0", "4 channels become 8 inputs"),
    (
        nn.Sequential(CONV, nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 4, 1)),
        "0",
        "1 has no weight and bias that could be set to zero",
    ),
    (Twice(), "a", "b, on its way, is called 2 times in a forward"),
    (Twice(), "b", "it is called 2 times in a forward"),
    (Tied(), "a", "its weight is also c.weight"),
    (Tied(), "b", "c, on its way, shares its weight"),
    (Idle(), "idle", "the model's forward does not call it"),
    (Idle(), "a", "its output goes into view"),
    (nn.Linear(4, 4), "", "it is the whole model"),
    (lenet_300_100(), "fc3", "its channels are the model's outputs; those of these can: fc1, fc2"),
    (lenet_300_100(), "relu1", "the model has no such layer with a weight"),
]


@pytest.mark.parametrize(("model", "name", "reason"), CANNOT_GO)
@pytest.mark.parametrize("change", [remove_channels, zero_channels])
def test_channels_that_cannot_go_are_refused_with_the_reason(model, name, reason, change):
    with pytest.raises(ValueError, match=f"channels of {name} cannot be removed.*{reason}"):
        change(model, {name: torch.arange(4) > 0})


def test_a_model_that_cannot_be_traced_is_refused():
    with pytest.raises(ValueError, match=r"torch\.fx cannot trace Branching"):
        remove_channels(Branching(), {"a": torch.arange(4) > 0})


@pytest.mark.parametrize("change", [remove_channels, zero_channels])
@pytest.mark.parametrize(
    ("masks", "problem"),
    [
        ({}, "masks is empty"),
        ({"conv1": torch.zeros(32)}, "the mask of conv1 removes all of its 32 channels"),
        ({"conv1": torch.ones(31)}, "conv1 has 32 channels; its mask has 31 entries"),
        ({"conv2": torch.ones(64, 32, 3, 3)}, "conv2 has 64 channels; its mask has 18432 entries"),
    ],
)
def test_bad_masks_of_channels_are_refused(change, masks, problem):
    with pytest.raises(ValueError, match=problem):
        change(conv_net(), masks)


def test_a_masked_model_is_refused():
    model = conv_net()
    apply_masks(model, global_masks(magnitude(model), 0.5))
    with pytest.raises(ValueError, match=r"conv1 has a mask: call make_permanent\(model\) before"):
        remove_channels(model, {"conv1": torch.arange(32) > 3})
