"""The networks that are made smaller have the sizes their papers and pages say."""

import pytest
import torch
from pruned import normed_net

from mpcourse.training.nets import conv_net, deep_conv_net, lenet_300_100


def test_lenet_300_100_has_its_266_200_weights():
    model = lenet_300_100()
    weights = {name: p.shape for name, p in model.named_parameters() if name.endswith("weight")}
    assert weights == {"fc1.weight": (300, 784), "fc2.weight": (100, 300), "fc3.weight": (10, 100)}
    assert sum(shape.numel() for shape in weights.values()) == 266_200
    assert model(torch.randn(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize("make", [conv_net, normed_net])
def test_the_convolutional_net_leaves_576_features(make):
    model = make()
    images = torch.randn(2, 1, 28, 28)
    position = list(model._modules).index("flatten")
    assert model[: position + 1](images).shape == (2, 64 * 3 * 3)
    assert model(images).shape == (2, 10)
    assert ("bn2" in model._modules) == (make is normed_net)


def test_the_deep_net_has_eight_blocks_and_a_head_that_can_be_cut_anywhere():
    model = deep_conv_net()
    images = torch.randn(2, 1, 28, 28)
    assert [name for name, _ in model.named_children()] == [
        *(f"block{number}" for number in range(1, 9)),
        "head",
    ]
    assert model[:4](images).shape == (2, 32, 7, 7)
    assert model[:8](images).shape == (2, 64, 3, 3)
    for cut in range(1, 9):
        assert torch.equal(model[cut:](model[:cut](images)), model(images))
    assert model(images).shape == (2, 10)
    assert not list(model.buffers())  # no batch norm: a batch may be cut up
