"""A net pruned by magnitude, and one with batch norms, for tests of whatever takes one."""

from collections import OrderedDict

from torch import nn

from mpcourse.pruning import apply_masks, global_masks, magnitude
from mpcourse.training.nets import conv_net, lenet_300_100


def pruned(model: nn.Module, sparsity: float = 0.9) -> nn.Module:
    """The model itself, masked by one threshold for all layers."""
    apply_masks(model, global_masks(magnitude(model), sparsity))
    return model


def tied_net() -> nn.Sequential:
    """Two layers with one weight."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def pruned_net() -> nn.Module:
    """LeNet-300-100 in evaluation mode, masked."""
    return pruned(lenet_300_100().eval())


def normed_net() -> nn.Sequential:
    """The convolutional net with a batch norm behind each convolution."""
    layers = OrderedDict()
    for name, layer in conv_net().named_children():
        layers[name] = layer
        if name.startswith("conv"):
            layers[name.replace("conv", "bn")] = nn.BatchNorm2d(layer.out_channels)
    return nn.Sequential(layers)
