"""Solutions: the cubic schedule, a proximal step, kept zeros, one regrowth step."""

import torch


def my_cubic(step, begin, end, initial, final):
    """Find the share of the time that is left, between 0 and 1, and cube it.

    At `begin` all of it is left and the sparsity is `initial`; at `end` nothing is, and it is
    `final`. Holding the step between the two keeps the schedule flat before and after; without it
    the cube runs on below `initial` and above `final`.
    """
    held = min(max(step, begin), end)
    left = (end - held) / (end - begin)
    return final + (initial - final) * left**3


def my_proximal(weight, threshold):
    """Shrink the size of each weight by the threshold, not below zero, and give the sign back.

    A step along the sign would carry a small weight over zero to the other side. The clamp is what
    stops it, and so it is the clamp that makes zeros.
    """
    return weight.sign() * (weight.abs() - threshold).clamp(min=0)


def my_keep(optimizer, weight, mask):
    """Zero the pruned weights, and every memory of them that has a value for each weight.

    Zeroing the weight alone lasts until the next step, which moves it by what is remembered. Adam
    also keeps a count of steps, a tensor without dimensions: it belongs to all weights and stays.
    """
    with torch.no_grad():
        weight.mul_(mask)
        for value in optimizer.state.get(weight, {}).values():
            if isinstance(value, torch.Tensor) and value.shape == mask.shape:
                value.mul_(mask)


def my_regrow(mask, weight, gradient, count):
    """First drop the smallest weights that there are, then grow where the gradient is largest.

    Weights that are not there have size 0, so infinity keeps them out of the smallest. What stays
    cannot grow, so minus infinity keeps it out of the largest. All that grows starts at zero: only
    what has stayed keeps its value, also where a weight goes and comes back at once.
    """
    left = mask.clone().flatten()
    sizes = weight.abs().masked_fill(~mask, torch.inf)
    left[sizes.flatten().argsort(stable=True)[:count]] = False
    new = left.clone()
    wanted = gradient.abs().flatten().masked_fill(left, -torch.inf)
    new[wanted.argsort(descending=True, stable=True)[:count]] = True
    return new.view(mask.shape), weight * left.view(mask.shape)
