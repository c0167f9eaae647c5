"""Which layer reads the channels that another one writes, so that both can lose them.

In a Sequential, or Sequentials inside one, what a layer writes goes to the next. A channel can be
removed if only batch norms and layers that map zero to zero come before the layer that reads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from mpcourse.pruning.layers import PRUNABLE, prunable_layers, weight_problem
from mpcourse.splitting.splits import is_chain

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# A channel of zeros stays one behind these. It would not behind Sigmoid, Softmax or LayerNorm.
ZERO_TO_ZERO = (nn.Identity, nn.ReLU, nn.Tanh, nn.Dropout)
POOLS = (nn.MaxPool2d, nn.AvgPool2d)  # the same, but behind other layers they mix channels


@dataclass(frozen=True)
class Link:
    """A layer whose output channels can be removed, and what changes with it, by name."""

    layer: str
    norms: tuple[str, ...]  # the batch norms between layer and reader
    reader: str
    block: int  # inputs of the reader per channel: more than 1 behind a Flatten


def channel_links(model: nn.Module) -> dict[str, Link]:
    """The layers of a Sequential whose channels can be removed, by name."""
    return {name: found for name, found in find_links(model).items() if isinstance(found, Link)}


def find_links(model: nn.Module) -> dict[str, Link | str]:
    """For each layer with a weight: its `Link`, or why its channels cannot go, in words."""
    if not is_chain(model):
        raise ValueError(
            "channels are removed from a Sequential, in which each layer reads what the one before "
            f"it writes, without a forward of its own; got {type(model).__name__}"
        )
    links: dict[str, Link | str] = {}
    for name in prunable_layers(model):
        try:
            links[name] = _follow(name, model)
        except _CannotGo as reason:
            links[name] = str(reason)
    return links


class _CannotGo(Exception):
    """Why the channels of a layer cannot be removed."""


def _leaves(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers in the order of the forward."""
    if is_chain(model):
        for own, child in model._modules.items():  # named_children leaves out one that comes twice
            yield from _leaves(child, f"{name}.{own}".removeprefix("."))
    else:
        yield name, model


def _follow(name: str, model: nn.Module) -> Link:
    """The link that begins at a layer."""
    leaves = dict(_leaves(model))
    if name not in leaves:
        raise _CannotGo("it lies inside a layer that is no Sequential, or has a forward of its own")
    names = list(leaves)
    norms, flattened = [], False
    if type(leaves[name]) not in PRUNABLE:
        raise _CannotGo(
            f"it is a {type(leaves[name]).__name__}, which may have a forward of its own"
        )
    for after in names[names.index(name) + 1 :]:
        module, kind = leaves[after], type(leaves[after])  # a subclass may compute anything
        if kind in PRUNABLE:
            for each in (name, *norms, after):
                if problem := weight_problem(model, each):
                    raise _CannotGo(f"the weight of {each} {problem}")
            return Link(name, tuple(norms), after, _block(leaves[name], module, flattened))
        if kind in NORMS:
            features, channels = module.num_features, channels_of(leaves[name])
            if module.weight is None:
                raise _CannotGo(f"{after} has no weight and bias that could be set to zero")
            if features % channels:
                raise _CannotGo(f"{after} has {features} features for {channels} channels")
            norms.append(after)
        elif kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            flattened = True
        elif kind not in ZERO_TO_ZERO and (
            kind not in POOLS or type(leaves[name]) is not nn.Conv2d
        ):
            raise _CannotGo(f"its output goes into {after} ({kind.__name__})")
    raise _CannotGo("its channels are the model's outputs")


def _block(layer: nn.Module, reader: nn.Module, flattened: bool) -> int:
    """How many inputs of the reader belong to one channel of the layer."""
    channels = channels_of(layer)
    inputs = reader.in_features if isinstance(reader, nn.Linear) else reader.in_channels
    if getattr(layer, "groups", 1) != 1 or getattr(reader, "groups", 1) != 1:
        raise _CannotGo("a grouped convolution ties channels together")
    across = isinstance(layer, CONVOLUTIONS) and isinstance(reader, nn.Linear) and flattened
    alike = type(layer) is type(reader)
    if (across and inputs % channels == 0) or (alike and inputs == channels):
        return inputs // channels
    raise _CannotGo(f"its {channels} channels become {inputs} inputs in a way not known here")


def channels_of(layer: nn.Module) -> int:
    """How many channels, or features, a layer writes."""
    return layer.weight.shape[0]
