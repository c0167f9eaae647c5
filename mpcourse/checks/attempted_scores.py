"""Tries an attempt at SNIP's scores, on nets of its own.

Page `pruning`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.verdict import short

Masks = dict[str, Tensor]


def nets_to_score() -> list[tuple[str, nn.Module, Tensor]]:
    """Nets to score, with a batch for each; the same every time."""
    linear = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    conv = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    used = nn.Sequential(nn.Linear(4, 3))
    for model in (linear, conv, used):
        for index, parameter in enumerate(model.parameters()):
            values = torch.sin(torch.arange(1.0, parameter.numel() + 1) * (index + 1.3))
            parameter.data.copy_(values.view(parameter.shape))
    rows = torch.cos(torch.arange(24.0)).view(6, 4)
    used(rows.flip(1)).square().sum().backward()
    images = torch.cos(torch.arange(45.0) * 0.7).view(5, 1, 3, 3)
    return [
        ("a net of two Linear layers", linear, rows),
        ("a net with a convolution", conv, images),
        ("a net that still has the gradients of another batch", used, rows),
    ]


def known_scores(model: nn.Module, images: Tensor, labels: Tensor) -> list[tuple[Masks, str]]:
    """The right scores first, then what people really give for them."""
    named = dict(model.named_parameters())
    outputs = model(images)
    loss = nn.functional.cross_entropy(outputs, labels)

    def slopes(value: Tensor) -> Masks:
        found = torch.autograd.grad(value, list(named.values()), retain_graph=True)
        return dict(zip(named, found, strict=True))

    w = {name: p.detach() for name, p in named.items() if name.endswith("weight")}
    g, of_outputs = slopes(loss), slopes(outputs.sum())
    old = {name: g[name] if p.grad is None else g[name] + p.grad for name, p in named.items()}
    right = {name: (w[name] * g[name]).abs() for name in w}
    return [
        (right, ""),
        ({n: g[n].abs() for n in w}, "That is the size of the gradient alone."),
        ({n: w[n].abs() for n in w}, "That is the size of the weight alone."),
        ({n: w[n] * g[n] for n in w}, "Some are negative: a loss that falls is a change as well."),
        ({n: -w[n] * g[n] for n in w}, "Some are negative: a loss that falls is a change as well."),
        ({n: right[n] ** 2 for n in w}, "Those are squares; |w * gradient| itself is asked."),
        (
            {n: right[n] / right[n].sum() for n in w},
            "Each layer is divided by its own sum: one threshold for all would mean nothing then.",
        ),
        (
            {n: (w[n] * old[n]).abs() for n in w},
            "The gradients of another batch are in it: clear them, or use torch.autograd.grad.",
        ),
        (
            {n: (w[n] * of_outputs[n]).abs() for n in w},
            "That is the gradient of the outputs: take that of the loss, cross_entropy.",
        ),
    ]


def wrong_scores(result: Any, known: list[tuple[Masks, str]]) -> list[str]:
    """What is wrong with scores, in lines; empty if nothing is.

    Args:
        result: What an attempt returned.
        known: As `known_scores` gives them for the same net and batch.
    """
    right = known[0][0]
    if not isinstance(result, Mapping):
        return [f"got {short(result)}", "Return a dictionary: name of each weight -> its scores."]
    short_names = {name.removesuffix(".weight"): name for name in right}
    found = {short_names.get(name, name): value for name, value in result.items()}
    if any(str(name).endswith("bias") for name in found):
        return [f"got scores of {', '.join(map(str, found))}", "Biases stay: score weights only."]
    if set(found) != set(right):
        names = f"expected scores of {', '.join(right)}"
        return [names, f"got {', '.join(map(str, found)) or 'none'}"]
    for name, value in found.items():
        if not isinstance(value, Tensor) or value.shape != right[name].shape:
            wanted = f"expected for {name} a tensor of shape {tuple(right[name].shape)}"
            return [wanted, f"got {short(value)}", "Every weight has a score of its own."]
    if _alike(found, right):
        return []
    first = next(iter(right))
    lines = [f"expected for {first} {short(right[first])}", f"got {short(found[first])}"]
    meant = [words for scores, words in known[1:] if _alike(found, scores)]
    return [*lines, *(meant or ["Multiply each weight by its gradient; take the size."])[:1]]


def _alike(found: Masks, scores: Masks) -> bool:
    """Equal but for a common positive factor."""
    rows = [
        torch.cat([each[name].detach().double().flatten() for name in scores])
        for each in (found, scores)
    ]
    sizes = [row.abs().sum() for row in rows]
    if not all(size.isfinite() and size > 0 for size in sizes):
        return False
    return torch.allclose(rows[0] / sizes[0], rows[1] / sizes[1], rtol=1e-4, atol=1e-7)
