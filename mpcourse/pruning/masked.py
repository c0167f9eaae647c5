"""Masks on a model: put there by `torch.nn.utils.prune`, changed, and removed for good.

torch keeps a masked weight as a parameter `weight_orig` and a buffer `weight_mask`; a hook sets
`weight` to their product before each forward. That product is left with the graph of the last
forward, which `copy.deepcopy` cannot copy: here a second hook detaches it after the forward.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from mpcourse.pruning.layers import (
    PRUNABLE,
    is_masked,
    prunable_layers,
    weight_of,
    weight_problem,
)
from mpcourse.pruning.masks import Masks


def apply_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Mask weights of a model, in place; what a mask leaves out reads as zero from now on.

    The parameters stay the same objects (renamed `weight_orig`), so an optimizer made earlier goes
    on; their gradients are zero where the mask is.

    Args:
        model: Any module with Linear or convolution layers.
        masks: Name of the layer -> mask that broadcasts to its weight, of bools or of 0 and 1.

    Raises:
        ValueError: No such layer, a layer without a weight, already masked, a mask of another
            shape or with other values, a mask that leaves nothing, a weight that two layers share
            or that is no parameter of the layer's own.
            The model is as before.
    """
    checked = checked_masks(model, masks)
    for name, (layer, _) in checked.items():
        if prune.is_pruned(layer):
            raise ValueError(
                f"{name} is pruned already: use update_masks, or make_permanent before new masks"
            )
    for layer, mask in checked.values():
        with torch.no_grad():  # or the weight would start with a graph
            prune.custom_from_mask(layer, "weight", mask.to(layer.weight.dtype))
        layer.register_forward_hook(_drop_graph, always_call=True)


def _drop_graph(layer: nn.Module, *_: Any) -> None:
    """After a forward: keep the masked weight without its graph. The output holds the graph."""
    layer.weight = layer.weight.detach()


def update_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Give a masked model other masks, in place.

    torch's own functions only ever prune more; these masks may also bring weights back, with the
    value that `weight_orig` has. Layers that are not named keep their masks.

    Raises:
        ValueError: As for `apply_masks`, or a layer has no mask yet. The model is as before.
    """
    checked = checked_masks(model, masks)
    for name, (layer, _) in checked.items():
        if not is_masked(layer):
            raise ValueError(f"{name} has no mask to update: call apply_masks first")
    for layer, mask in checked.values():
        layer.weight_mask.copy_(mask)
        layer.weight = weight_of(layer)  # as the next forward will use it


def masks_of(model: nn.Module) -> Masks:
    """The masks of a model, ours or torch's own: name of the layer -> bool tensor."""
    found = prunable_layers(model)
    return {name: layer.weight_mask.bool() for name, layer in found.items() if is_masked(layer)}


def make_permanent(model: nn.Module) -> None:
    """Remove the masks of a model for good, in place: the zeros stay, as ordinary weights.

    Nothing keeps them zero from now on: train further, and they come back. The `state_dict` gets
    the names and the order it had before.

    Raises:
        ValueError: The model has no masks.
    """
    masked = [layer for layer in prunable_layers(model).values() if is_masked(layer)]
    if not masked:
        raise ValueError("the model has no masks to make permanent: call apply_masks first")
    for layer in masked:
        prune.remove(layer, "weight")
        for key, hook in list(layer._forward_hooks.items()):
            if hook is _drop_graph:
                del layer._forward_hooks[key]
                layer._forward_hooks_always_called.pop(key, None)
        if "bias" in layer._parameters:  # torch leaves the weight last
            layer._parameters["bias"] = layer._parameters.pop("bias")


def permanent_copy(model: nn.Module) -> nn.Module:
    """A copy of a model whose masks, ours or torch's own, have become zeros."""
    masked = [m for m in model.modules() if isinstance(m, PRUNABLE) and is_masked(m)]
    for layer in masked:
        _drop_graph(layer)
    plain = copy.deepcopy(model)
    if masked:
        make_permanent(plain)
    return plain


def refuse_masked(model: nn.Module, what: str) -> None:
    """Refuse a model of which a layer has a mask."""
    for name, module in model.named_modules():
        if prune.is_pruned(module) and not list(module.children()):
            raise ValueError(f"{name} has a mask: call make_permanent(model) before {what}")


def checked_masks(
    model: nn.Module, masks: Mapping[str, Tensor]
) -> dict[str, tuple[nn.Module, Tensor]]:
    """Each named layer with its mask as bools of its weight's shape; refuses as `apply_masks`."""
    if not masks:
        raise ValueError("masks is empty: it maps the name of each layer to its mask")
    layers = prunable_layers(model, masks)
    for name in layers:
        if problem := weight_problem(model, name):
            raise ValueError(f"the weight of {name} {problem}: it takes no mask of its own")
    return {name: (layer, _fitted(name, layer, masks[name])) for name, layer in layers.items()}


def _fitted(name: str, layer: nn.Module, mask: Tensor) -> Tensor:
    weight = weight_of(layer)
    same_dimensions = mask.dim() == weight.dim()  # (channels,) would broadcast along the inputs
    if not same_dimensions or any(
        m not in (1, w) for m, w in zip(mask.shape, weight.shape, strict=True)
    ):
        raise ValueError(
            f"{name} has a weight of shape {tuple(weight.shape)}; "
            f"a mask of shape {tuple(mask.shape)} does not fit"
        )
    refuse_scores(name, mask)
    if not mask.any():
        raise ValueError(f"the mask of {name} prunes all of its {weight.numel():,} weights")
    return mask.bool().expand_as(weight).to(weight.device)


def refuse_scores(name: str, mask: Tensor) -> None:
    """Refuse what is no mask, such as the scores that one is made from."""
    if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"the mask of {name} has values other than 0 and 1")
