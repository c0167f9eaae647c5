"""Checks: a global magnitude mask, non-zeros of a net, a criterion for a budget."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.verdict import Case, Verdict, check_cases
from mpcourse.pruning import (
    apply_masks,
    layer_masks,
    magnitude,
    make_permanent,
    prunable_layers,
    weight_of,
)

Masks = dict[str, Tensor]
Row = dict[str, Any]
Known = list[tuple[Any, str]]


def check_global_masks(attempt: Callable[[Mapping[str, Tensor], float], Masks]) -> Verdict:
    """Check `my_global_masks(parameters, sparsity)`: one threshold over all weights.

    Args:
        attempt: Takes name -> parameter (weights end in "weight", biases in "bias") and the share
            to prune, returns name -> mask of each weight, True where it stays.
    """
    alone = {"fc.weight": torch.tensor([[0.05, -0.2], [0.1, 0.025]])}
    net = {
        "fc1.weight": torch.tensor([[0.1, -0.2, 0.3], [-0.4, 0.5, 0.6]]),
        "fc1.bias": torch.tensor([0.01, 3.0]),
        "fc2.weight": torch.tensor([[-4.0, 5.0, 0.7, -0.8]]),
        "fc2.bias": torch.tensor([0.02]),
    }
    conv = {
        "conv.weight": torch.tensor([[[[0.3, -0.9]]], [[[0.05, 0.6]]]]),
        "conv.bias": torch.tensor([0.001, 0.002]),
        "fc.weight": torch.tensor([[0.01, -0.02], [0.03, 2.0]]),
    }
    cases = [
        _mask_case(alone, 0.5),
        _mask_case(net, 0.5),
        _mask_case(net, 0.2),
        _mask_case(conv, 0.75),
        _mask_case(net, 0.0),
    ]
    return check_cases(attempt, cases, where='"One threshold, or one per layer?"')


def _mask_case(parameters: Masks, sparsity: float) -> Case:
    weights = {name: value for name, value in parameters.items() if name.endswith("weight")}
    sizes = {name: value.abs() for name, value in weights.items()}
    everything = {name: value.abs() for name, value in parameters.items()}
    right = _kept(sizes, sparsity)
    per_layer = layer_masks(sizes, sparsity)
    with_biases = _kept(everything, sparsity)
    known: Known = [
        ({name: ~mask for name, mask in right.items()}, "True stays: these are the ones that go."),
        (_kept({n: -v for n, v in sizes.items()}, sparsity), "That keeps the small weights."),
        (_kept(weights, sparsity), "A weight of -2 is not small: compare absolute values."),
        (per_layer, "Each layer has a threshold of its own there; asked is one for all weights."),
        (
            {name: with_biases[name] for name in right},
            "The biases are counted in the threshold: leave them out.",
        ),
        (with_biases, "Masks for the weights only: biases are few, and stay."),
        (
            right | {n: torch.ones_like(v).bool() for n, v in parameters.items() if n not in right},
            "The weights are right; return no masks for biases.",
        ),
        (
            {name: size > sparsity for name, size in sizes.items()},
            "sparsity is the share of the weights that goes, not the size at which they go.",
        ),
        (_kept(sizes, 1 - sparsity), "That keeps a share of `sparsity`; asked is to prune it."),
    ]
    given = ", ".join(f"{name} {value.tolist()}" for name, value in parameters.items())
    going = round(sparsity * sum(value.numel() for value in weights.values()))
    hint = f"The {going} smallest by absolute value go, wherever they are; all else is True."
    return Case(f"{given} and sparsity {sparsity}", (parameters, sparsity), right, known, hint)


def _kept(scores: Mapping[str, Tensor], sparsity: float) -> Masks:
    """All but the lowest scores of all tensors together; no two are equal."""
    together = torch.cat([score.flatten() for score in scores.values()]).sort().values
    going = round(sparsity * len(together))
    if going == 0:
        return {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    return {name: score > together[going - 1] for name, score in scores.items()}


def check_nonzeros(attempt: Callable[[nn.Module], int]) -> Verdict:
    """Check `my_nonzeros(model)`: the non-zero weights of all Linear layers, masked or not.

    Args:
        attempt: Takes a model, returns how many weights (no biases) of its Linear layers are not 0.
    """
    masked, permanent, half = _net(), _net(), _net()
    apply_masks(masked, layer_masks(magnitude(masked), 0.75))
    apply_masks(permanent, layer_masks(magnitude(permanent), 0.5))
    make_permanent(permanent)
    apply_masks(half, layer_masks(magnitude(half, ["0"]), 0.75))
    inside = nn.Sequential(nn.Sequential(nn.Flatten(), _net()), nn.Linear(2, 3))
    cases = [
        _count_case("a net with masks", masked),
        _count_case("a net whose zeros are permanent", permanent),
        _count_case("a net without zeros", _net()),
        _count_case("a net with a mask on its first layer only", half),
        _count_case("a net inside another one", inside),
    ]
    return check_cases(attempt, cases, where='"What does torch keep?"')


def _net() -> nn.Module:
    """8-4-2, its weights and biases not zero and all different."""
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for index, parameter in enumerate(net.parameters()):
            values = torch.arange(1.0, parameter.numel() + 1) + 0.01 * index
            parameter.copy_(values.view(parameter.shape))
    return net


def _count_case(given: str, model: nn.Module) -> Case:
    layers = list(prunable_layers(model).values())
    right = sum(int(weight_of(layer).count_nonzero()) for layer in layers)
    every = sum(weight_of(layer).numel() for layer in layers)
    biases = sum(layer.bias.numel() for layer in layers)
    stored = sum(int(value.count_nonzero()) for value in model.state_dict().values())
    matrices = sum(int(v.count_nonzero()) for v in model.state_dict().values() if v.dim() > 1)
    in_masks = sum(int(mask.sum()) for mask in model.buffers())
    outside = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
    known: Known = [
        (right + biases, "Biases are counted there too: weights are asked for."),
        (
            sum(int(p.count_nonzero()) for p in model.parameters()),
            "parameters() has weight_orig, which is whole, and the biases: take layer.weight.",
        ),
        (every, "Every weight counts there. Under a mask, weight_orig is whole: layer.weight."),
        (stored, "state_dict() has weight_orig and weight_mask and biases: take layer.weight."),
        (matrices, "state_dict() has weight_orig and weight_mask: take layer.weight."),
        (every - right, "Those are the zeros."),
        (in_masks, "Only masks are counted there; a layer may have none, and still have zeros."),
        (
            sum(int(weight_of(layer).count_nonzero()) for layer in outside),
            "Layers may lie deeper: model.modules() goes through all of them.",
        ),
        (right / every, "That is a share; a number of weights is asked for."),
    ]
    return Case(given, (model,), right, known, "Add up layer.weight.count_nonzero().item().")


def check_choice(
    attempt: Callable[[Sequence[Row], float], tuple[str, float] | None],
) -> Verdict:
    """Check `my_choice(rows, least)`: the sparsest way that keeps enough accuracy on average.

    Args:
        attempt: Takes rows with "criterion", "sparsity", "seed", "pruned" and "tuned", and the
            least mean accuracy after fine-tuning; returns (criterion, sparsity), or None.
    """
    numbers = {  # accuracies of two seeds, pruned and tuned
        ("magnitude", 0.3): ([0.94, 0.94], [0.96, 0.96]),
        ("snip", 0.3): ([0.96, 0.95], [0.95, 0.95]),
        ("magnitude", 0.5): ([0.93, 0.93], [0.98, 0.97]),
        ("snip", 0.5): ([0.92, 0.91], [0.95, 0.94]),
        ("magnitude", 0.7): ([0.92, 0.92], [0.96, 0.95]),
        ("snip", 0.7): ([0.90, 0.90], [0.94, 0.94]),
        ("magnitude", 0.8): ([0.91, 0.91], [0.97, 0.93]),
        ("snip", 0.8): ([0.85, 0.83], [0.93, 0.92]),
        ("magnitude", 0.9): ([0.70, 0.72], [0.92, 0.90]),
        ("snip", 0.9): ([0.74, 0.76], [0.95, 0.89]),
        ("random", 0.9): ([0.10, 0.10], [0.20, 0.94]),
        ("snip", 0.95): ([0.25, 0.25], [0.875, 0.875]),
    }
    cases = [
        _choice_case(numbers, least) for least in (0.945, 0.915, 0.932, 0.905, 0.875, 0.5, 0.99)
    ]
    return check_cases(attempt, cases, where='"Which criterion?"')


def _choice_case(
    numbers: Mapping[tuple[str, float], tuple[list[float], list[float]]], least: float
) -> Case:
    rows = [
        {"criterion": criterion, "sparsity": sparsity, "seed": seed, "pruned": p, "tuned": t}
        for (criterion, sparsity), columns in numbers.items()
        for seed, (p, t) in enumerate(zip(*columns, strict=True))
    ]
    pruned = {key: columns[0] for key, columns in numbers.items()}
    tuned = {key: columns[1] for key, columns in numbers.items()}

    def sparsest(value: Callable[[list[float]], float], of: Mapping, sign: int = 1) -> Any:
        fine = [key for key in of if value(of[key]) >= least]
        return max(fine, key=lambda key: (sign * key[1], value(of[key])), default=None)

    right = sparsest(mean, tuned)
    best = max(tuned, key=lambda key: mean(tuned[key]))
    wanted = [] if right is None else [key for key in tuned if key[1] == right[1]]
    known: Known = [
        (sparsest(mean, pruned), "That is by accuracy before fine-tuning; asked is after it."),
        (sparsest(max, tuned), "A lucky seed is enough there: take the mean over the seeds."),
        (sparsest(min, tuned), "Every seed has to reach it there: take the mean over the seeds."),
        (sparsest(mean, tuned, -1), "Another way leaves fewer weights and still is good enough."),
        (best, "That is the most accurate; asked is the sparsest that is good enough."),
        *((key, "At that sparsity another criterion is more accurate.") for key in wanted),
    ]
    known += [(right[::-1], "Return (criterion, sparsity), in this order.")] if right else []
    known += [(None, "A way exists; None is for when there is none.")] if right else []
    words = ", ".join(f"{name} {s:g}: {t}" for (name, s), t in tuned.items())
    hint = "Keep the ways whose mean is at least `least`; of these the sparsest, then the best."
    if right is None:
        hint = "No way is good enough: return None."
    return Case(f"at least {least}, after fine-tuning {words}", (rows, least), right, known, hint)
