"""The layers whose weights are pruned, and what their weights are, masked or not.

Biases and batch norms are left alone: they are few, and a layer without them loses much.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from mpcourse.splitting.splits import hooks_of

PRUNABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def prunable_layers(model: nn.Module, layers: Iterable[str] | None = None) -> dict[str, nn.Module]:
    """The Linear and convolution layers of a model by name (all, or those named), in its order.

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
    others = dict(model.named_modules())
    for name in wanted:
        if name in found:
            continue
        problem = f"the model has no layer {name!r}"
        if name in others:
            problem = f"{name!r} is a {type(others[name]).__name__}, without a weight to prune"
        raise ValueError(f"{problem}; layers that can be pruned: {', '.join(found)}")
    return {name: layer for name, layer in found.items() if name in wanted}


def is_masked(layer: nn.Module) -> bool:
    """Whether `torch.nn.utils.prune` holds a mask for the weight of this layer."""
    return "weight_mask" in layer._buffers


def weight_problem(model: nn.Module, name: str) -> str | None:
    """Why a layer's weight cannot be changed alone, in words; None if it can."""
    layer = model.get_submodule(name)
    if isinstance(layer, NonDynamicallyQuantizableLinear):  # in attention: it is never called
        return "is read by the module that it lies in"
    if not isinstance(parameter_of(layer), nn.Parameter):  # weight_norm, spectral_norm
        return "is computed from other parameters"
    named = dict(model.named_parameters(remove_duplicate=False))
    own = f"{name}.weight".removeprefix(".")
    return next(
        (f"is also {n}" for n, p in named.items() if n != own and p is named.get(own)), None
    )


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
    """The gradient of a layer's weight, 0 where it is masked; refused without a backward."""
    weight = parameter_of(layer)
    if weight.grad is None:
        missing = (
            "call loss.backward() before the scores" if weight.requires_grad else "it is frozen"
        )
        raise ValueError(f"{name} has no gradient: {missing}")
    return weight.grad


def count_nonzeros(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Name of each layer that can be pruned -> (its non-zero weights, all its weights)."""
    weights = {name: weight_of(layer) for name, layer in prunable_layers(model).items()}
    return {name: (int(w.count_nonzero()), w.numel()) for name, w in weights.items()}


def replace_layers(model: nn.Module, new: Mapping[str, nn.Module]) -> nn.Module:
    """Put `new[name]` for the layer of that name, in every place that the layer has in the model.

    Returns the model, or the new layer where the model itself is what is replaced. A layer with
    hooks is refused.
    """
    by_layer = {model.get_submodule(name): layer for name, layer in new.items()}
    for name in new:
        if hooks := hooks_of(model.get_submodule(name)):
            raise ValueError(f"{name or 'the layer'} would lose its {hooks}: remove them first")
    for old, layer in by_layer.items():
        layer.train(old.training)
    for place, old in list(model.named_modules(remove_duplicate=False)):
        if place and old in by_layer:
            parent, _, own = place.rpartition(".")
            owner = model.get_submodule(parent)
            setattr(owner, own, by_layer[old])
            if isinstance(owner, nn.TransformerEncoderLayer):
                owner.activation_relu_or_gelu = 0  # or torch's fast path reads the weight itself
    return by_layer.get(model, model)
