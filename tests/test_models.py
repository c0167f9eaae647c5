"""The networks that are made smaller have the sizes their papers and pages say."""

import pytest
import torch

from mpcourse.models import conv_net, lenet_300_100


def test_lenet_300_100_has_its_266_200_weights():
    model = lenet_300_100()
    weights = {name: p.shape for name, p in model.named_parameters() if name.endswith("weight")}
    assert weights == {"fc1.weight": (300, 784), "fc2.weight": (100, 300), "fc3.weight": (10, 100)}
    assert sum(shape.numel() for shape in weights.values()) == 266_200
    assert model(torch.randn(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_convolutional_net_leaves_576_features(batch_norm: bool):
    model = conv_net(batch_norm)
    images = torch.randn(2, 1, 28, 28)
    position = list(model._modules).index("flatten")
    assert model[: position + 1](images).shape == (2, 64 * 3 * 3)
    assert model(images).shape == (2, 10)
    assert ("bn2" in model._modules) == batch_norm
