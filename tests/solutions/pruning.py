"""Solutions: a global magnitude mask, SNIP's scores, a unit that leaves."""

import torch
from torch import nn


def my_global_masks(parameters, sparsity):
    """Put the sizes of all weights into one row, and find the largest that goes.

    Absolute values, because a large negative weight matters as well. Biases are left out of the row
    and of the result: they are few, and a layer without them loses much. The masks say what stays.
    """
    sizes = {name: p.abs() for name, p in parameters.items() if name.endswith("weight")}
    together = torch.cat([size.flatten() for size in sizes.values()]).sort().values
    going = round(sparsity * len(together))
    threshold = together[going - 1] if going else -1.0
    return {name: size > threshold for name, size in sizes.items()}


def my_snip(model, images, labels):
    """Ask for the gradients of the weights alone, and take the size of weight times gradient.

    `torch.autograd.grad` gives the gradients without touching `.grad`, where those of an earlier
    batch may lie: a backward would be added to them. The sign does not matter, because a loss that
    falls when a weight goes is a change as well.
    """
    weights = {name: p for name, p in model.named_parameters() if name.endswith("weight")}
    loss = nn.functional.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss, list(weights.values()))
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: (weight * gradient).abs().detach() for (name, weight), gradient in pairs}


def my_remove(first, second, unit):
    """Take the unit's row out of the first layer and its column out of the second.

    With no weights coming in, the unit writes `relu(bias)` for every input: a constant. Added to
    the second layer's bias by way of the column that goes, it is not lost, and the outputs stay.
    """
    kept = [index for index in range(first.out_features) if index != unit]
    smaller = nn.Linear(first.in_features, len(kept)).to(first.weight)
    reader = nn.Linear(len(kept), second.out_features).to(second.weight)
    with torch.no_grad():
        smaller.weight.copy_(first.weight[kept])
        smaller.bias.copy_(first.bias[kept])
        reader.weight.copy_(second.weight[:, kept])
        reader.bias.copy_(second.bias + second.weight[:, unit] * first.bias[unit].relu())
    return smaller, reader
