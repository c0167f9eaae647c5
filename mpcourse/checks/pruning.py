"""Checks: a mask by size, SNIP's scores, a unit that leaves."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.attempted_scores import known_scores, nets_to_score, wrong_scores
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    same,
    short,
    try_out,
)
from mpcourse.pruning import layer_masks

Masks = dict[str, Tensor]
Known = list[tuple[Any, str]]
Pair = tuple[nn.Linear, nn.Linear]


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
    return check_cases(attempt, cases, where='"Which weights are small?"')


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
    if sparsity == 0:
        none = {name: torch.zeros_like(mask) for name, mask in right.items()}
        last = "At sparsity 0 nothing goes. (Does an index of -1 mean the last one, the largest?)"
        known.insert(0, (none, last))
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


def check_snip(attempt: Callable[[nn.Module, Tensor, Tensor], Masks]) -> Verdict:
    """Check `my_snip(model, images, labels)`: |w * gradient| for each weight.

    Args:
        attempt: Takes a model, a batch and its labels; returns name of each weight -> scores of its
            shape. A common factor does not matter: only the order counts.
    """
    where = '"Which criterion?"'
    if not callable(attempt):
        return no_function(attempt, where)
    for given, model, images in nets_to_score():
        labels = torch.arange(len(images)) % 3
        before = copy.deepcopy(dict(model.state_dict()))
        known = known_scores(model, images, labels)
        result, problem = try_out(attempt, model, images, labels)
        if result is ...:
            return not_attempted()
        lines = [problem] if problem else wrong_scores(result, known)
        if not problem and not same(dict(model.state_dict()), before):
            lines = ["the model's weights have changed: only look at them."]
        if lines:
            return not_yet([f"Given {given}:", *lines], where)
    return correct("All three nets agree, also those that the page does not show.")


def check_remove(attempt: Callable[[nn.Linear, nn.Linear, int], Pair]) -> Verdict:
    """Check `my_remove(first, second, unit)`: `second(relu(first(x)))` stays, a unit leaves.

    Args:
        attempt: Takes two Linear layers with a ReLU between them and a unit of the first whose
            incoming weights are zero (its bias need not be); returns two smaller layers.
    """
    where = '"Does a channel of zeros write zero?"'
    if not callable(attempt):
        return no_function(attempt, where)
    for bias, unit in [(0.0, 1), (-0.75, 3), (0.5, 0), (2.0, 2)]:
        layers = _layers(bias, unit)
        handed = copy.deepcopy(layers)
        result, problem = try_out(attempt, *handed, unit)
        if result is ...:
            return not_attempted()
        given = f"Given Linear(3, 4), Linear(4, 2) and unit {unit}, whose bias is {bias:g}:"
        if problem:
            return not_yet([given, problem], where)
        before, after = (
            [p for each in pair for p in each.parameters()] for pair in (layers, handed)
        )
        lines = _wrong_pair(result, layers, bias, unit)
        if not same(after, before):
            lines = ["the layers that were handed in have changed: return new ones."]
        if lines:
            return not_yet([given, *lines], where)
    return correct("The same outputs with a unit less, whatever its bias was.")


def _layers(bias: float, unit: int) -> Pair:
    """3-4-2 with weights that are all different, and a unit that reads nothing."""
    first, second = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    with torch.no_grad():
        for index, parameter in enumerate([*first.parameters(), *second.parameters()]):
            values = torch.sin(torch.arange(1.0, parameter.numel() + 1) * (index + 1)).double()
            parameter.copy_(values.view(parameter.shape))
        first.weight[unit] = 0
        first.bias[unit] = bias
    return first, second


def _wrong_pair(result: Any, layers: Pair, bias: float, unit: int) -> list[str]:
    first, second = layers
    pair = isinstance(result, tuple | list) and len(result) == 2
    if not pair or not all(isinstance(each, nn.Linear) for each in result):
        return [f"got {short(result)}", "Return the two new Linear layers."]
    shapes = [tuple(each.weight.shape) for each in result]
    if shapes != [(3, 3), (2, 3)]:
        lines = ["expected weights of shapes (3, 3) and (2, 3)", f"got {shapes[0]} and {shapes[1]}"]
        if shapes[1] == (2, 4):
            return [*lines, "The second layer still reads the unit: it loses a column."]
        if shapes[0] == (4, 2):
            return [*lines, "Rows of a weight are outputs, columns are inputs."]
        return [*lines, "The first layer loses a row, the second a column."]
    for name, layer, outputs in zip(("first", "second"), result, (3, 2), strict=True):
        if layer.bias is not None and len(layer.bias) != outputs:
            lines = [f"the {name} layer has {outputs} outputs and {len(layer.bias)} biases"]
            return [*lines, "Cut the bias as well."]
    rows = torch.linspace(-2, 2, 15, dtype=torch.float64).view(5, 3)
    expected = second(first(rows).relu()).detach()
    new_first, new_second = (copy.deepcopy(each).double() for each in result)  # float32 will do
    found = new_second(new_first(rows).relu()).detach()
    column = second.weight[:, unit].detach()
    gap = expected - found

    def is_gap(lost: Tensor) -> bool:
        return torch.allclose(gap, lost.expand_as(gap), rtol=1e-4, atol=1e-5)

    if is_gap(0 * column):
        return []
    lines = [f"expected outputs that begin with {short(expected[0])}", f"got {short(found[0])}"]
    if is_gap(max(bias, 0.0) * column):
        return [*lines, "The unit wrote relu(bias), a constant, and that is missing."]
    if is_gap((max(bias, 0.0) - bias) * column):
        return [*lines, "The constant goes through the ReLU first: a negative bias writes 0."]
    if is_gap(max(bias, 0.0) * (column - 1)):
        return [*lines, "The constant reaches each output through the unit's column of the weight."]
    return [*lines, f"All but unit {unit} keep their weights and biases, in order."]
