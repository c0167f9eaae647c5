"""Lottery tickets: a mask found by training, and the weights of an earlier time under it.

Train, prune, rewind what is left to where it started, train again. The control is the same mask
over another net's first weights: `rewind` takes them, too.

Source: Frankle and Carbin, 2018, arXiv:1803.03635; rewinding to an early step instead of the first:
Frankle et al., 2019, arXiv:1912.05671.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mpcourse.pruning.layers import is_masked, prunable_layers, weight_of


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's state: of a masked weight, `weight_orig`; the masks are left out."""
    state = {k: v for k, v in model.state_dict().items() if not k.endswith("weight_mask")}
    return {key.replace("weight_orig", "weight"): v.detach().clone() for key, v in state.items()}


@torch.no_grad()
def rewind(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Set the weights of a model back to an earlier state, in place; its masks stay.

    Parameters stay the same objects. An optimizer keeps what it remembers: make a new one.

    Args:
        model: Masked or not.
        state: From `snapshot` of the same model, before or after it was masked.

    Raises:
        ValueError: The state is that of another model. Nothing has changed.
    """
    now = {k: v for k, v in model.state_dict().items() if not k.endswith("weight_mask")}
    names = {key.replace("weight_orig", "weight"): key for key in now}
    for name, key in names.items():
        if name not in state or state[name].shape != now[key].shape:
            raise ValueError(f"the state has no {name} of shape {tuple(now[key].shape)}")
    if unknown := sorted(set(state) - set(names)):
        raise ValueError(f"the state has {', '.join(unknown)}, which the model does not have")
    for name, key in names.items():
        now[key].copy_(state[name])  # a state_dict shares its memory with the model
    for layer in prunable_layers(model).values():
        if is_masked(layer):
            layer.weight = weight_of(layer)  # as the next forward will use it
