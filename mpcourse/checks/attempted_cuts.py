"""An attempt at cutting a model into stages, looked at (page `split_a_model`)."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from torch import nn

from mpcourse.checks.verdict import short, try_out
from mpcourse.splitting.splits import balanced_bounds


def split_trial(attempt: Callable, costs: list[int], num_stages: int) -> Any:
    """Let the attempt cut a model whose layers have so many parameters each.

    Returns:
        None when the stages are right, `...` for a stub, else what is wrong, in lines.
    """
    model = nn.Sequential(*(nn.Linear(1, cost, bias=False) for cost in costs))
    stages, problem = try_out(attempt, model, num_stages)
    if stages is ...:
        return ...
    given = f"Given layers of {costs} parameters and {num_stages} stages:"
    if problem:
        return [given, problem]
    if not isinstance(stages, list | tuple) or not all(
        isinstance(s, nn.Sequential) for s in stages
    ):
        return [given, f"expected a list of nn.Sequential, got {short(stages)}"]
    fault = _wrong_layers(list(model), stages, num_stages)
    if fault:
        return [given, f"got stages of {[len(stage) for stage in stages]} layers", fault]
    bounds = [0, *accumulate(len(stage) for stage in stages)]
    largest = [largest_stage(costs, cut) for cut in (bounds, balanced_bounds(costs, num_stages))]
    if largest[0] == largest[1]:
        return None
    held = [sum(costs[start:end]) for start, end in pairwise(bounds)]
    right = f"the largest can have {largest[1]} parameters"
    return [given, f"got stages of {held} parameters; {right}", _why_uneven(costs, bounds)]


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


def _why_uneven(costs: Sequence[int], bounds: Sequence[int]) -> str:
    sizes = [end - start for start, end in pairwise(bounds)]
    if list(bounds) in [_filled_up(costs, len(sizes), beyond) for beyond in (True, False)]:
        return "Filling each stage up before opening the next is greedy: compare all cuts."
    if max(sizes) - min(sizes) <= 1:
        return "That shares out the layers evenly, not their parameters."
    return "Compare all cuts by their largest stage."


def _filled_up(costs: Sequence[int], num_stages: int, beyond: bool) -> list[int]:
    """Where stages end that are filled up to the average one by one, or a layer beyond it."""
    bounds, average = [0], sum(costs) / num_stages
    for index in range(1, len(costs)):
        held = sum(costs[bounds[-1] : index])
        full = held >= average if beyond else held + costs[index] > average
        if full or len(costs) - index == num_stages - len(bounds):
            bounds += [index] * (len(bounds) < num_stages)
    return [*bounds, len(costs)]
