"""An attempt at cutting a model into stages, looked at (page `split_a_model`)."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, combinations, pairwise
from typing import Any

from torch import nn

from mpcourse.checks.verdict import short, try_out
from mpcourse.splitting.splits import balanced_bounds

Layer = int | tuple[int, int]


def split_trial(attempt: Callable, layers: list[Layer], num_stages: int) -> Any:
    """Let the attempt cut a model of given layers.

    Args:
        attempt: The learner's function.
        layers: For each the number of its weights (0: a ReLU), or the inputs and outputs of one
            that has biases too.
        num_stages: How many stages are asked for.

    Returns:
        None when the stages are right, `...` for a stub, else what is wrong, in lines.
    """
    model = nn.Sequential(*map(_layer, layers))
    costs = [sum(p.numel() for p in layer.parameters()) for layer in model]
    stages, problem = try_out(attempt, model, num_stages)
    if stages is ...:
        return ...
    given = f"Given layers of {costs} parameters and {num_stages} stages:"
    if problem:
        without = "A layer may have no weight, as a ReLU: go through layer.parameters()."
        return [given, problem, without if "attribute 'weight'" in problem else ""]
    is_list = isinstance(stages, list | tuple | nn.ModuleList | nn.Sequential)
    if not is_list or not all(isinstance(stage, nn.Sequential) for stage in stages):
        return [given, f"expected a list of nn.Sequential, got {short(stages)}"]
    weights = [layer.weight.numel() if hasattr(layer, "weight") else 0 for layer in model]
    fault = _wrong_layers(list(model), stages, num_stages)
    if fault:
        return [given, f"got stages of {[len(stage) for stage in stages]} layers", fault]
    bounds = [0, *accumulate(len(stage) for stage in stages)]
    largest = [largest_stage(costs, cut) for cut in (bounds, balanced_bounds(costs, num_stages))]
    if largest[0] == largest[1]:
        return None
    held = [sum(costs[start:end]) for start, end in pairwise(bounds)]
    right = f"the largest can have {largest[1]} parameters"
    why = _why_uneven(costs, weights, bounds)
    return [given, f"got stages of {held} parameters; {right}", why]


def _layer(size: Layer) -> nn.Module:
    if isinstance(size, tuple):
        return nn.Linear(*size)
    return nn.Linear(1, size, bias=False) if size else nn.ReLU()


def _wrong_layers(layers: list, stages: Sequence[nn.Sequential], num_stages: int) -> str | None:
    if len(stages) != num_stages:
        return f"That makes {len(stages)} stages."
    if any(len(stage) == 0 for stage in stages):
        return "A stage is empty: its device would have nothing to do."
    number = {id(layer): index for index, layer in enumerate(layers)}
    found = [number.get(id(layer)) for stage in stages for layer in stage]
    if None in found:
        return "A layer in it is not the model's own: cut the model, do not copy it."
    lost = sorted(set(range(len(layers))) - set(found))
    if lost:
        last = ", the last," if lost[-1] == len(layers) - 1 else ""
        return f"Layer {lost[-1]}{last} is in no stage."
    if found != sorted(set(found)):
        return f"The layers are {found}: each once, in the order of the model."
    return None


def largest_stage(costs: Sequence[int], bounds: Sequence[int]) -> int:
    """The costs of the costliest stage; stage s has the layers bounds[s] to bounds[s + 1] - 1."""
    return max(sum(costs[start:end]) for start, end in pairwise(bounds))


def _why_uneven(costs: Sequence[int], weights: Sequence[int], bounds: Sequence[int]) -> str:
    sizes = [end - start for start, end in pairwise(bounds)]
    least = largest_stage(weights, balanced_bounds(weights, len(sizes)))
    if weights != costs and largest_stage(weights, bounds) == least:
        return "That balances the weights alone: biases are parameters too."
    if list(bounds) in [_filled_up(costs, len(sizes), beyond) for beyond in (True, False)]:
        return "Filling each stage up before opening the next is greedy: compare all cuts."
    if max(sizes) - min(sizes) <= 1:
        return "That shares out the layers evenly, not their parameters."
    if _spread(costs, bounds) == min(_spread(costs, cut) for cut in _cuts(len(costs), len(sizes))):
        return "Those stages are as alike as can be; asked is that the largest be small."
    return "Compare all cuts by their largest stage."


def _spread(costs: Sequence[int], bounds: Sequence[int]) -> int:
    held = [sum(costs[start:end]) for start, end in pairwise(bounds)]
    return max(held) - min(held)


def _cuts(count: int, num_stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, count), num_stages - 1):
        yield (0, *inner, count)


def _filled_up(costs: Sequence[int], num_stages: int, beyond: bool) -> list[int]:
    """Where stages end that are filled up to the average one by one, or a layer beyond it."""
    bounds, average = [0], sum(costs) / num_stages
    for index in range(1, len(costs)):
        held = sum(costs[bounds[-1] : index])
        full = held >= average if beyond else held + costs[index] > average
        if full or len(costs) - index == num_stages - len(bounds):
            bounds += [index] * (len(bounds) < num_stages)
    return [*bounds, len(costs)]
