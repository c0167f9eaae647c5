"""A pruned model comes back from its `state_dict`, with masks or with smaller layers.

Save with `torch.save(model.state_dict(), path)`, load with
`load_pruned(fresh_model, torch.load(path, weights_only=True))`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.pruning.layers import PRUNABLE, prunable_layers
from mpcourse.pruning.links import NORMS
from mpcourse.pruning.masked import apply_masks, refresh, refuse_masked
from mpcourse.pruning.structured import set_sizes

MASK, ORIGINAL = "weight_mask", "weight_orig"  # names that torch.nn.utils.prune gives


def load_pruned(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load the state of a pruned model into a fresh one, in place.

    Layers get masks where the state has them, and become smaller where channels were removed.

    Args:
        model: A model of the original architecture, not pruned.
        state: The `state_dict()` of the pruned model.

    Raises:
        ValueError: The model is pruned, or the state is that of another model. The model is as
            before.
    """
    refuse_masked(model, "a state is loaded")
    _check_names(model, state)
    sizes = _new_sizes(model, state)
    masks = {
        key.removesuffix(MASK).removesuffix("."): mask
        for key, mask in state.items()
        if key.endswith(MASK)
    }
    layers = prunable_layers(model)
    for name in masks:
        _refuse_bad_mask(name, layers, masks[name], state)
    for layer, tensors in sizes:
        _resize(layer, tensors)
    if masks:
        apply_masks(model, masks)
    model.load_state_dict(state)
    for name in masks:
        refresh(layers[name])


def _check_names(model: nn.Module, state: Mapping[str, Any]) -> None:
    plain = {key.replace(ORIGINAL, "weight") for key in state if not key.endswith(MASK)}
    expected = set(model.state_dict())
    if plain != expected:
        missing = sorted(expected - plain) or "nothing"
        unknown = sorted(plain - expected) or "nothing"
        raise ValueError(f"the state is another model's: missing {missing}, unknown {unknown}")


def _new_sizes(
    model: nn.Module, state: Mapping[str, Any]
) -> list[tuple[nn.Module, dict[str, Tensor]]]:
    """The layers that have to become smaller, with the tensors of the state for each."""
    found = []
    for key, ours in model.state_dict().items():
        theirs = state[key] if key in state else state[key.removesuffix("weight") + ORIGINAL]
        name, _, tensor = key.rpartition(".")
        layer = model.get_submodule(name)
        smaller = ours.dim() == theirs.dim() and all(
            1 <= new <= old for new, old in zip(theirs.shape, ours.shape, strict=True)
        )
        if ours.shape != theirs.shape:
            if not smaller or not isinstance(layer, (*PRUNABLE, *NORMS)):
                sizes = f"{tuple(theirs.shape)} does not fit into {tuple(ours.shape)}"
                raise ValueError(f"the state is another model's: {key} of shape {sizes}")
            found.append((layer, {tensor: theirs}))
    return found


def _refuse_bad_mask(
    name: str, layers: Mapping[str, nn.Module], mask: Tensor, state: Mapping[str, Any]
) -> None:
    weight = state.get(f"{name}.{ORIGINAL}".removeprefix("."))
    if name not in layers or weight is None or weight.shape != mask.shape:
        raise ValueError(f"the state has a mask for {name!r} but no weight of its shape")


def _resize(layer: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        old = getattr(layer, name)
        new = torch.empty(tensor.shape, dtype=old.dtype, device=old.device)
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        setattr(layer, name, new)
    set_sizes(layer)
