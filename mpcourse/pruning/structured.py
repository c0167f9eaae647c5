"""Structured pruning: whole channels set to zero, or really removed, with the same output.

Both functions return a new model and leave the given one alone. A channel is one output of a
convolution or of a Linear layer.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mpcourse.pruning.links import NORMS, Link, channels_of, find_links
from mpcourse.pruning.masked import refuse_masked, refuse_scores


@torch.no_grad()
def zero_channels(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model in which pruned channels are zero: weights, biases and batch norms.

    Zero weights alone would not do: the bias and the shift of a batch norm still make an output.
    Takes and refuses what `remove_channels` does.
    """
    links = _checked(model, masks)
    zeroed = copy.deepcopy(model)
    modules = dict(zeroed.named_modules())
    for name, link in links.items():
        gone = (~masks[name].flatten().bool()).nonzero().flatten()
        channels = channels_of(modules[name])
        for layer in (modules[each] for each in (name, *link.norms)):
            positions = _spread(gone, layer.weight.shape[0] // channels)
            layer.weight[positions] = 0
            if layer.bias is not None:
                layer.bias[positions] = 0
    return zeroed


def remove_channels(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model without the pruned channels: smaller layers, the same output as zeros.

    The layer loses rows of its weight and bias, its batch norms lose features, and the layer that
    reads the channels loses its inputs.

    Args:
        model: A model without masks; which layers can lose channels, `channel_links(model)` says.
        masks: Name of the layer -> mask of one entry per channel, of any shape, True for those that
            stay (`layer_masks(channel_norms(model, layers=...), 0.5)`).

    Raises:
        ValueError: The model has masks, a layer's channels cannot go, a mask of another size or
            with other values, a mask that leaves no channel. The given model never changes.
    """
    links = _checked(model, masks)
    slim = copy.deepcopy(model)
    modules = dict(slim.named_modules())
    for name, link in links.items():
        kept = masks[name].flatten().nonzero().flatten()
        channels = channels_of(modules[name])
        _keep(modules[name], kept, dim=0)
        for norm in link.norms:
            _keep(modules[norm], _spread(kept, modules[norm].num_features // channels), dim=0)
        _keep(modules[link.reader], _spread(kept, link.block), dim=1)
    return slim


def _spread(channels: Tensor, block: int) -> Tensor:
    """Positions of channels after a Flatten, where each channel has become `block` features."""
    return (channels[:, None] * block + torch.arange(block, device=channels.device)).flatten()


def _keep(layer: nn.Module, positions: Tensor, dim: int) -> None:
    """Cut a layer down to some of its outputs (dim 0) or of its inputs (dim 1)."""
    names = ["weight"] if dim else ["weight", "bias", "running_mean", "running_var"]
    for name in names:
        old = getattr(layer, name, None)
        if old is None:
            continue
        new = old.detach().index_select(dim, positions.to(old.device))
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        setattr(layer, name, new)
    shape = layer.weight.shape
    if isinstance(layer, NORMS):
        layer.num_features = shape[0]
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = shape
    else:
        layer.out_channels, layer.in_channels = shape[0], shape[1] * layer.groups


def _checked(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Link]:
    """The links of the layers that lose channels, or an error."""
    refuse_masked(model, "channels are removed")
    if not masks:
        raise ValueError("masks is empty: it maps the name of each layer to a mask of its channels")
    found, modules = find_links(model), dict(model.named_modules())
    for name, mask in masks.items():
        link = found.get(name, "the model has no such layer with a weight")
        if not isinstance(link, Link):
            able = ", ".join(n for n, each in found.items() if isinstance(each, Link)) or "none"
            raise ValueError(
                f"the channels of {name} cannot be removed: {link}; those of these can: {able}"
            )
        channels = channels_of(modules[name])
        if mask.numel() != channels:
            raise ValueError(f"{name} has {channels} channels; its mask has {mask.numel()} entries")
        refuse_scores(name, mask)
        if not mask.any():
            raise ValueError(f"the mask of {name} removes all of its {channels} channels")
    return {name: found[name] for name in masks}
