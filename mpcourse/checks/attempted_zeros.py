"""Tries an attempt at keeping pruned weights at zero, with several optimizers.

Page `sparse_training`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.verdict import same, short, try_out

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "SGD without momentum": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def keeps_zeros(attempt: Callable, make: Callable) -> Any:
    """What is wrong after each of three steps; None if nothing is, `...` for a stub."""
    weight = nn.Parameter(torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]))
    other = nn.Parameter(torch.ones(2, 3))  # of the same shape: which memory belongs to whom?
    mask = torch.tensor([[True, False, True], [False, True, True]])
    optimizer = make([weight, other])
    for step in range(3):
        slope = torch.tensor([[0.5, 1.0, -1.0], [2.0, -0.25, 1.5]])
        weight.grad, other.grad = slope * (1 + step), torch.ones(2, 3)
        optimizer.step()
        wanted = weight.detach() * mask
        memory = _memory(optimizer, weight, mask)
        before = [value.clone() for value in _beside(optimizer, weight, other)]
        result, problem = try_out(attempt, optimizer, weight, mask)
        if result is ...:
            return ...
        if problem:
            return [problem, _why(problem)]
        found = _wrong_weights(weight.detach(), wanted, mask)
        found = found or _wrong_memory(_tensors(optimizer, weight), memory, mask)
        if found:
            return found
        if weight.grad is None or not same(before, _beside(optimizer, weight, other)):
            return [
                "a gradient, another parameter or its memory has changed:",
                "only weight and optimizer.state[weight] are asked.",
            ]
    return None


def _beside(optimizer: torch.optim.Optimizer, weight: Tensor, other: Tensor) -> list[Tensor]:
    """All that an attempt has to leave alone."""
    return [weight.grad, other.detach(), *_tensors(optimizer, other).values()]


def _tensors(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What is remembered of a parameter, by name."""
    state = optimizer.state.get(parameter, {})
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def _memory(optimizer: torch.optim.Optimizer, weight: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """What should be remembered afterwards: a count of steps is no memory of a weight."""
    state = _tensors(optimizer, weight)
    return {k: v * mask if v.shape == mask.shape else v.clone() for k, v in state.items()}


def _wrong_weights(weight: Tensor, wanted: Tensor, mask: Tensor) -> list[str]:
    if same(weight, wanted):
        return []
    lines = [f"expected weight {short(wanted)}", f"got {short(weight)}"]
    if weight[~mask].any() and not weight[mask].any():
        return [*lines, "The mask is True where a weight stays."]
    if weight[~mask].any():
        return [*lines, "Pruned weights are not zero: change weight itself, in place."]
    return [*lines, "Weights that stay keep the values that the step gave them."]


def _wrong_memory(state: dict[str, Tensor], wanted: dict[str, Tensor], mask: Tensor) -> list[str]:
    for key, expected in wanted.items():
        found = state.get(key)
        if found is None:
            return [f"{key} is gone: weights that stay need what is remembered of them."]
        if same(found, expected):
            continue
        lines = [f"expected {key} {short(expected)}", f"got {short(found)}"]
        if expected.shape != mask.shape:
            return [*lines, f"{key} has another shape than the weight: it counts steps; keep it."]
        if not found.any():
            return [*lines, "Weights that stay keep their memory: zero the pruned entries only."]
        why = "The weight is zero now; once it is given back, it would move by what is remembered."
        return [*lines, why]
    return []


def _why(problem: str) -> str:
    if "leaf" in problem:
        return "Changing a parameter in place needs torch.no_grad()."
    if "KeyError" in problem:
        return "Without momentum the optimizer remembers nothing: there may be no such entry."
    return "optimizer.state[weight] maps names to what is remembered: tensors, numbers, None."
