"""A net pruned by magnitude, for tests of whatever takes one."""

from torch import nn

from mpcourse.pruning import apply_masks, global_masks, magnitude
from mpcourse.training.nets import lenet_300_100


def pruned(model: nn.Module, sparsity: float = 0.9) -> nn.Module:
    """The model itself, masked by one threshold for all layers."""
    apply_masks(model, global_masks(magnitude(model), sparsity))
    return model


def pruned_net() -> nn.Module:
    """LeNet-300-100 in evaluation mode, masked."""
    return pruned(lenet_300_100().eval())
