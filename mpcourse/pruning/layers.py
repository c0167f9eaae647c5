"""The layers whose weights are pruned, and what their weights are, masked or not.

Biases and batch norms are left alone: they are few, and a layer without them loses much.
"""

from collections.abc import Iterable

from torch import Tensor, nn

PRUNABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def prunable_layers(model: nn.Module, layers: Iterable[str] | None = None) -> dict[str, nn.Module]:
    """The Linear and convolution layers of a model, by name, in the order of the model.

    Args:
        model: Any module.
        layers: The names of those that are wanted; all of them when `None`.

    Raises:
        ValueError: There is none, or a name is not that of a layer with a weight to prune.
    """
    found = {name: layer for name, layer in model.named_modules() if isinstance(layer, PRUNABLE)}
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no Linear or convolution layer: nothing to prune"
        )
    if layers is None:
        return found
    wanted = [layers] if isinstance(layers, str) else list(layers)
    for name in wanted:
        if name not in found:
            raise ValueError(_no_such_layer(model, name, found))
    return {name: layer for name, layer in found.items() if name in wanted}


def _no_such_layer(model: nn.Module, name: str, found: Iterable[str]) -> str:
    others = dict(model.named_modules())
    if name in others:
        kind = type(others[name]).__name__
        problem = f"{name!r} is a {kind}, without a weight to prune"
    else:
        problem = f"the model has no layer {name!r}"
    return f"{problem}; layers that can be pruned: {', '.join(found)}"


def is_masked(layer: nn.Module) -> bool:
    """Whether `torch.nn.utils.prune` holds a mask for the weight of this layer."""
    return "weight_mask" in layer._buffers


def shared_weight(model: nn.Module, name: str) -> str | None:
    """The other name of a layer's weight, if the model has the same parameter in two places."""
    own = f"{name}.weight".removeprefix(".")
    named = dict(model.named_parameters(remove_duplicate=False))
    return next((n for n, p in named.items() if n != own and p is named.get(own)), None)


def parameter_of(layer: nn.Module) -> nn.Parameter:
    """The parameter that is trained: `weight`, or `weight_orig` under a mask."""
    return layer.weight_orig if is_masked(layer) else layer.weight


def weight_of(layer: nn.Module) -> Tensor:
    """The weight that the next forward will use, detached.

    Under a mask `layer.weight` is only what the last forward used: a step of the optimizer changes
    `weight_orig`, and the product with the mask is taken anew when the layer is called.
    """
    weight = parameter_of(layer).detach()
    return weight * layer.weight_mask if is_masked(layer) else weight


def gradient_of(name: str, layer: nn.Module) -> Tensor:
    """The gradient of a layer's weight; 0 where the weight is masked.

    Raises:
        ValueError: There has been no backward.
    """
    gradient = parameter_of(layer).grad
    if gradient is None:
        raise ValueError(f"{name} has no gradient: call loss.backward() before the scores")
    return gradient


def count_nonzeros(model: nn.Module) -> dict[str, tuple[int, int]]:
    """How many weights of each layer that can be pruned are not zero, and how many it has.

    Args:
        model: Any module, masked or not.

    Returns:
        Name of the layer -> (non-zero weights, all weights).
    """
    weights = {name: weight_of(layer) for name, layer in prunable_layers(model).items()}
    return {name: (int(w.count_nonzero()), w.numel()) for name, w in weights.items()}
