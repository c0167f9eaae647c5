"""An attempt at a training step over two places, looked at (page `split_a_model`)."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpcourse.checks.verdict import short, try_out
from mpcourse.splitting.placement import Placement, try_placement

ROWS, IN, HIDDEN, OUT = 7, 6, 5, 3
GPUS = [str(torch.device("cuda", index)) for index in (0, 1)]  # pretended


def step_problem(attempt: Callable[..., Any]) -> Any:
    """Let the attempt take a step in one place, then over two pretended GPUs.

    Returns:
        None when all is right, `...` for a stub, else what is wrong, in lines.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(4004)
        front = nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh())
        parts = [front, nn.Linear(HIDDEN, OUT)]
        data = [torch.randn(ROWS, IN), torch.randint(0, OUT, (ROWS,))]
    lines = _wrong_numbers(attempt, parts, data)
    for places in (GPUS, GPUS[::-1]):
        lines = lines or _wrong_places(attempt, parts, data, *places)
    return lines


def _wrong_numbers(attempt: Callable, parts: list[nn.Module], data: list[Tensor]) -> Any:
    given = "Given first and second both 'cpu':"
    parts, twins = copy.deepcopy(parts), copy.deepcopy(parts)
    loss, problem = try_out(attempt, *parts, *[t.clone() for t in data], "cpu", "cpu")
    if problem:
        asks = any(word in problem.lower() for word in ("cuda", "nvidia"))
        return [given, problem, "Use the places that come in, first and second." if asks else ""]
    if loss is ...:
        return ...
    if not isinstance(loss, Tensor) or loss.dim():
        return [given, f"expected the loss, a tensor of 0 dimensions; got {short(loss)}"]
    expected = cross_entropy(twins[1](twins[0](data[0])), data[1])
    expected.backward()
    if not torch.allclose(loss.detach().cpu(), expected.detach()):
        right = "It is cross_entropy of the outputs and the labels."
        return [given, f"expected a loss of {expected.item():.6f}, got {loss.item():.6f}", right]
    for part, twin, name in zip(parts, twins, ("front", "back"), strict=True):
        for mine, its in zip(part.parameters(), twin.parameters(), strict=True):
            if mine.grad is None:
                return [given, f"The loss is right, but {name} has no gradient.", _why_none(parts)]
            if not torch.allclose(mine.grad.cpu(), its.grad):
                return [given, f"The loss is right, but the gradient of {name} is not."]
    return None


def _why_none(parts: list[nn.Module]) -> str:
    if any(parameter.grad is not None for parameter in parts[1].parameters()):
        return "The hidden rows are cut off from it: detach() and .data do that."
    return "Who calls backward?"


def _wrong_places(
    attempt: Callable, parts: list[nn.Module], data: list[Tensor], first: str, second: str
) -> list[str] | None:
    given = f"Given first {first!r} and second {second!r}:"
    placement, problem = try_out(try_placement, attempt, *parts, *data, first, second)
    if problem:
        return [given, problem]
    if placement.error:
        return [given, f"at: {placement.line}", placement.error, _unmoved(placement, first, second)]
    hidden = (ROWS, HIDDEN)
    wanted = {
        ("cpu", first, (ROWS, IN), False),
        ("cpu", second, (ROWS,), False),
        (first, second, hidden, False),
        (second, first, hidden, True),
    }
    found = [(t.source, t.target, t.shape, t.backward) for t in placement.transfers]
    if sorted(found) == sorted(wanted):
        return None
    if len(placement.parameter_bytes) < 2:
        return [given, f"All layers are on {', '.join(placement.parameter_bytes)}: use both."]
    more = next(
        (t for t, way in zip(placement.transfers, found, strict=True) if way not in wanted), 0
    )
    extra = f"This copy is not needed: {' '.join(str(more).split())}." if more else ""
    if more and more.shape == (ROWS, OUT):
        extra += " Bring the labels to the outputs, not the outputs to the labels."
    return [given, f"expected 4 copies, got {len(found)}", extra or "One copy is made twice."]


def _unmoved(placement: Placement, first: str, second: str) -> str:
    """What is in the wrong place, by what has been copied and computed with so far."""
    used = placement.parameter_bytes  # by the devices of the parts that were called
    went = {transfer.shape: transfer.target for transfer in placement.transfers}
    if went.get((ROWS, IN)) != first:
        return f"The inputs have to be on {first}, beside the first part."
    if first not in used:
        return f"The first part has to be on {first} too: a module is moved by .to as well."
    if went.get((ROWS, HIDDEN)) != second:
        return f"The hidden rows have to be brought to {second}."
    if second not in used:
        return f"The second part has to be on {second} too: a module is moved by .to as well."
    where = went.get((ROWS,), "the host")
    return f"The labels are on {where}; the outputs come out on {second}."
