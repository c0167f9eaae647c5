"""Which layer reads the channels that another one writes, so that both can lose them.

A channel can leave when all that reads it is known: the layer's output goes through one path, over
batch norms and layers that turn zero into zero, to exactly one layer. The path is found in the
graph that torch.fx traces, in Sequentials and in torchvision's ResNets alike.
"""

import operator
from collections import Counter
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.nn import functional

from mpcourse.pruning.layers import PRUNABLE, prunable_layers, shared_weight

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# A channel of zeros stays one behind these. It would not behind Sigmoid, Softmax or LayerNorm.
ZERO_TO_ZERO = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
ZERO_TO_ZERO_FUNCTIONS = (
    *(functional.relu, torch.relu, torch.tanh, functional.gelu, functional.silu),
    *(functional.dropout, functional.max_pool2d, functional.avg_pool2d),
    *(functional.adaptive_avg_pool2d, functional.leaky_relu),
)
ZERO_TO_ZERO_METHODS = ("relu", "relu_", "tanh", "contiguous")


@dataclass(frozen=True)
class Link:
    """A layer whose output channels can be removed, and who has to follow.

    Attributes:
        layer: Name of the layer that writes the channels.
        norms: Names of the batch norms on the way.
        reader: Name of the layer that reads them.
        block: How many inputs of the reader belong to one channel: more than 1 where a Flatten
            turns each channel's pixels into features.
    """

    layer: str
    norms: tuple[str, ...]
    reader: str
    block: int


def channel_links(model: nn.Module) -> dict[str, Link]:
    """The layers whose channels can be removed, by name.

    Args:
        model: A module that torch.fx can trace.

    Raises:
        ValueError: The model cannot be traced.
    """
    return {name: found for name, found in find_links(model).items() if isinstance(found, Link)}


def find_links(model: nn.Module) -> dict[str, Link | str]:
    """For each layer with a weight: its `Link`, or why its channels cannot go, in words."""
    layers = prunable_layers(model)
    if "" in layers:
        return {"": "it is the whole model, so its channels are the model's outputs"}
    called = [node for node in _graph_of(model).nodes if node.op == "call_module"]
    nodes, calls = {node.target: node for node in called}, Counter(n.target for n in called)
    links: dict[str, Link | str] = {}
    for name in layers:
        try:
            if other := shared_weight(model, name):
                raise _CannotGo(f"its weight is also {other}")
            links[name] = _follow(nodes.get(name), model, calls)
        except _CannotGo as reason:
            links[name] = str(reason)
    return links


class _CannotGo(Exception):
    """Why the channels of a layer cannot be removed."""


def _graph_of(model: nn.Module) -> fx.Graph:
    try:
        return fx.Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"torch.fx cannot trace {type(model).__name__}, so what reads its channels is not "
            f"known: {error}"
        ) from error


def _follow(node: fx.Node | None, model: nn.Module, calls: Counter) -> Link:
    """The link that begins at a layer, or the reason why there is none."""
    if node is None:
        raise _CannotGo("the model's forward does not call it")
    if calls[node.target] > 1:
        raise _CannotGo(f"it is called {calls[node.target]} times in a forward")
    modules = dict(model.named_modules())
    norms, reader, flattened = _path(node, modules)
    for name in (*norms, reader):
        if calls[name] > 1:
            raise _CannotGo(f"{name}, on its way, is called {calls[name]} times in a forward")
    if shared_weight(model, reader):
        raise _CannotGo(f"{reader}, on its way, shares its weight")
    block = _block(modules[node.target], modules[reader], flattened)
    _refuse_odd_norms({name: modules[name] for name in norms}, modules[node.target], block)
    return Link(node.target, tuple(norms), reader, block)


def _path(node: fx.Node, modules: dict[str, nn.Module]) -> tuple[list[str], str, bool]:
    """Go from a layer to the one that reads its output: the norms, the reader, any Flatten."""
    norms, flattened = [], False
    while True:
        if len(node.users) != 1:
            raise _CannotGo(f"its output is used in {len(node.users)} places")
        node = next(iter(node.users))
        module = modules[node.target] if node.op == "call_module" else None
        if isinstance(module, PRUNABLE):
            return norms, node.target, flattened
        if isinstance(module, NORMS):
            norms.append(node.target)
        elif _flattens(node, module):
            flattened = True
        elif node.op == "output":
            raise _CannotGo("its channels are the model's outputs")
        elif not _keeps_zero(node, module):
            raise _CannotGo(f"its output goes into {_called(node, module)}")


def _flattens(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether the node flattens everything but the batch: `flatten(x, 1)` in one of its forms."""
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    is_function = node.op == "call_function" and node.target is torch.flatten
    if is_function or (node.op == "call_method" and node.target == "flatten"):
        return (*node.args[1:], *node.kwargs.values()) in [(1,), (1, -1)]
    return False


def _keeps_zero(node: fx.Node, module: nn.Module | None) -> bool:
    if node.op == "call_function":
        return node.target in ZERO_TO_ZERO_FUNCTIONS
    if node.op == "call_method":
        return node.target in ZERO_TO_ZERO_METHODS
    return isinstance(module, ZERO_TO_ZERO)


def _called(node: fx.Node, module: nn.Module | None) -> str:
    if module is not None:
        return f"{node.target} ({type(module).__name__})"
    if node.target in (operator.add, operator.iadd, torch.add):
        return "a sum"
    return getattr(node.target, "__name__", str(node.target))


def _block(layer: nn.Module, reader: nn.Module, flattened: bool) -> int:
    """How many inputs of the reader belong to one channel of the layer."""
    channels, inputs = channels_of(layer), inputs_of(reader)
    if getattr(layer, "groups", 1) != 1 or getattr(reader, "groups", 1) != 1:
        raise _CannotGo("a grouped convolution ties channels together")
    across = isinstance(layer, CONVOLUTIONS) and isinstance(reader, nn.Linear) and flattened
    alike = type(layer) is type(reader)
    if (across and inputs % channels == 0) or (alike and inputs == channels):
        return inputs // channels
    raise _CannotGo(f"its {channels} channels become {inputs} inputs in a way not known here")


def _refuse_odd_norms(norms: dict[str, nn.Module], layer: nn.Module, block: int) -> None:
    for name, norm in norms.items():
        if norm.weight is None:
            raise _CannotGo(f"{name} has no weight and bias that could be set to zero")
        if norm.num_features not in (channels_of(layer), channels_of(layer) * block):
            raise _CannotGo(f"{name} has {norm.num_features} features, not one for each channel")


def channels_of(layer: nn.Module) -> int:
    """How many channels, or features, a layer writes."""
    return layer.weight.shape[0]


def inputs_of(layer: nn.Module) -> int:
    """How many channels, or features, a layer reads."""
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
