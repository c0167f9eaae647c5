"""Checks of page `pipeline`: a ceiling, a mini-batch in pieces, the split for given costs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

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


def check_ceiling(attempt: Callable[[int, int], float]) -> Verdict:
    """Check `my_ceiling(num_stages, num_microbatches)`, a speed-up over one device.

    Args:
        attempt: Takes two counts, returns the best speed-up of equal stages, one per device.
    """
    pairs = [(2, 5), (2, 1), (4, 8), (3, 5), (1, 6), (8, 2)]
    cases = [_ceiling_case(stages, count) for stages, count in pairs]
    return check_cases(attempt, cases, where='"How fast can two devices be at best?"')


def _ceiling_case(p: int, m: int) -> Case:
    right = p * m / (m + p - 1)
    known = (
        (
            float(p),
            "That needs every device at work all the time; each has to wait p - 1 slots.",
        ),
        (m / p, "That grows with m for ever; p devices are never more than p times as fast."),
        (p * m / (m + p), "One slot too many: each device waits p - 1 slots, not p."),
        (2 * m / (m + 1), f"That is for two stages; here there are {p}."),
        (right / p, "That is the share of the devices' time in use; times p it is the speed-up."),
        (1 - right / p, "That is the bubble: the idle share of the devices."),
        (1 / right, "Upside down: the time of one device over the pipeline's time."),
        ((m + p - 1) / m, "Upside down, and for the share in use: m slots work of m + p - 1."),
        (float(min(p, m)), "Even then the pipeline fills up and drains: count those slots."),
    )
    hint = "Count slots: one device needs p * m of them. When has the last stage done its last?"
    return Case(f"{p} stages and {m} micro-batches", (p, m), right, known, hint)


Step = Callable[[nn.Module, Callable, Tensor, Tensor, int], float | Tensor]


def check_pieces(attempt: Step) -> Verdict:
    """Check `my_step(model, loss_fn, inputs, targets, split_size)`: a mini-batch in pieces.

    Args:
        attempt: Runs forward and backward piece by piece; leaves in `.grad` what the whole
            mini-batch would, and returns its mean loss.
    """
    where = '"The same answer?" and the snippets'
    if not callable(attempt):
        return no_function(attempt, where)
    for rows, size in ((4, 2), (5, 2), (7, 3), (3, 8)):
        lines = _pieces_trial(attempt, rows, size)
        if lines is None:
            return not_attempted()
        if lines:
            return not_yet([f"Given {rows} rows and split_size {size}:", *lines], where)
    return correct("Loss and gradients are those of the whole mini-batch, ragged or not.")


def _pieces_trial(attempt: Step, rows: int, size: int) -> list[str] | None:
    """What is wrong, in words; nothing if all is right; None for the stub."""
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, 3, generator=generator, dtype=torch.double)
    targets = inputs.sum(1, keepdim=True) * torch.arange(1.0, rows + 1)[:, None]
    weight = torch.randn(1, 3, generator=generator, dtype=torch.double)
    model = nn.Linear(3, 1, bias=False, dtype=torch.double)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))

    def begin() -> None:
        model.weight.data.copy_(weight)
        model.weight.grad = None

    begin()
    loss = nn.functional.mse_loss(inputs @ model.weight.T, targets)
    loss.backward()
    right, gradient = loss.item(), model.weight.grad
    begin()
    result, problem = try_out(attempt, model, nn.MSELoss(), inputs, targets, size)
    if problem:
        return [problem]
    if result is ...:
        return None
    pieces = inputs.split(size)
    wanted = [len(piece) for piece in pieces]
    if seen != wanted:
        line = f"expected pieces of {wanted} rows, the model saw {seen}"
        dropped = "The last piece may be smaller, but its rows count." if sum(seen) < rows else ""
        return [line, dropped]
    if model.weight.grad is None:
        return ["no gradient arrived: call backward() on every piece's loss."]
    if not same(model.weight.grad, gradient):
        return _wrong_gradient(
            model.weight.grad, gradient, _piece_gradients(model, pieces, targets)
        )
    if not same(result, right):
        return [f"the gradient is right; expected the loss {short(right)}", f"got {short(result)}"]
    return []


def _piece_gradients(model: nn.Module, pieces: Sequence[Tensor], targets: Tensor) -> list[Tensor]:
    """The gradient of each piece's own mean loss."""
    found = []
    for piece, answer in zip(pieces, targets.split(len(pieces[0])), strict=True):
        loss = nn.functional.mse_loss(piece @ model.weight.T, answer)
        found.append(torch.autograd.grad(loss, model.weight)[0])
    return found


def _wrong_gradient(got: Tensor, right: Tensor, each: list[Tensor]) -> list[str]:
    known = (
        (
            sum(each),
            "Each loss is a mean: added up they count too much. Scale before backward().",
        ),
        (sum(each) / len(each), "Mean of means: a short piece counts as much as a full one."),
        (each[-1], "Only the last piece is left: do not clear the gradients between pieces."),
        (each[0], "Only the first piece is there: call backward() for every piece."),
    )
    meant = [message for gradient, message in known if same(got, gradient)]
    hint = "A piece of n rows out of N counts by n / N, its loss and so its gradient."
    lines = [f"expected the gradient {short(right)}", f"got {short(got)}"]
    return [*lines, *(meant or [hint])[:1]]


def check_split_size(attempt: Callable[[Sequence[int], int, float, float], int]) -> Verdict:
    """Check `my_split_size(sizes, num_samples, fixed, per_sample)`: the best size, without running.

    Args:
        attempt: Takes split sizes that divide the mini-batch, its samples, and what a micro-batch
            costs in each of two equal stages; returns the size of the shortest step.
    """
    cases = [
        _split_case([3, 6, 12, 24, 48], 48, 3.0, 1.0),
        _split_case([6, 12, 24, 48, 96], 96, 0.0, 1.0),
        _split_case([5, 10, 20, 40], 40, 250.0, 1.0),
        _split_case([5, 10, 20, 40, 60, 120], 120, 12.0, 2.0),
        _split_case([60, 20, 30, 10], 60, 0.5, 0.1),
    ]
    return check_cases(attempt, cases, where='"What does a micro-batch cost?" and the curve')


def _split_case(sizes: list[int], rows: int, fixed: float, each: float) -> Case:
    def step(size: int) -> float:
        return (rows // size + 1) * (fixed + each * size)

    right = min(sizes, key=step)
    known: list[tuple[Any, str]] = [
        (min(sizes), "The smallest has the smallest bubble, but every micro-batch has its cost."),
        (max(sizes), "Best for one device: it pays the fixed cost least often. Nothing overlaps."),
        (rows // right, "That is the number of micro-batches; asked is their size."),
        (step(right), "That is the time of the step; asked is the size that has it."),
        (sizes.index(right), "That is the position in the list, not the size."),
    ]
    given = f"sizes {sizes}, {rows} samples, fixed cost {fixed:g}, {each:g} per sample"
    hint = "m micro-batches through two equal stages take m + 1 slots of fixed + per_sample * size."
    return Case(given, (sizes, rows, fixed, each), right, known, hint)
