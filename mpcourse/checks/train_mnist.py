"""Checks of page `train_mnist`: evaluation over ragged batches, batch norm's drift, and its end."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpcourse.checks.attempted_evaluations import (
    LOSS,
    Batches,
    Model,
    batches_of,
    known_totals,
    totals,
)
from mpcourse.checks.placed import place_on
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

HOST = torch.device("cpu")
WHERE_EVALUATE = '"Break 1: the mean of means"'


def check_evaluate(attempt: Callable[..., Any]) -> Verdict:
    """Check `my_evaluate(model, batches, loss_fn)`.

    Args:
        attempt: Returns (loss, accuracy) over all samples of the batches, the loss a mean, and
            leaves the model's mode as it was.
    """
    if not callable(attempt):
        return no_function(attempt, WHERE_EVALUATE)
    for sizes, mode in (
        ((4, 4), "training"),
        ((4, 4, 2), "training"),
        ((5, 3, 2), "evaluation"),
        ((4, 3), "training mode, its norm in evaluation"),
    ):
        batches, model = batches_of(sizes), Model().train(mode != "evaluation")
        model.net[0].train(mode == "training")  # the last one is frozen
        given = f"Given batches of {short(list(sizes))} samples and a model in {mode} mode:"
        placed = [tuple(place_on(value, HOST) for value in batch) for batch in batches]
        result, problem = try_out(attempt, model, placed, LOSS)
        if result is ...:
            return not_attempted()
        lines = _wrong(result, problem, batches, model, mode)
        if lines:
            return not_yet([given, *lines], WHERE_EVALUATE)
    return correct("Every sample counts once, in evaluation mode, and the mode is as it was.")


def _wrong(
    result: Any, problem: str | None, batches: Batches, model: Model, mode: str
) -> list[str]:
    """What is wrong with an attempt at evaluating, or nothing."""
    if problem and "same device" in problem:
        hint = "The outputs lie where the last stage is: bring the targets to output.device."
        return [problem, hint]
    if problem and "must match" in problem:
        return [problem, "One answer per row of outputs: argmax(dim=1)."]
    if problem:
        return [problem]
    expected = totals(batches, training=False)["right"]
    if not same(result, expected):
        known = [message for wrong, message in known_totals(batches) if same(result, wrong)]
        hint = "Return the pair (loss, accuracy): the mean loss and the share of right answers."
        lines = [f"expected {short(expected)}", f"got {short(result)}"]
        return [*lines, *(known or [hint])[:1]]
    if model.training != (mode != "evaluation"):
        left = "training" if model.training else "evaluation"
        effect = "what comes next would run in it, unnoticed."
        return [f"The numbers are right, but the model is left in {left} mode: {effect}"]
    if model.net[0].training != (mode == "training"):
        wakes = "its memory would move again" if model.net[0].training else "its memory would stay"
        return [f"The numbers are right, but the norm's own mode has changed: {wakes}."]
    if model.gradients_were_on:
        return ["The numbers are right; without gradients was asked for: use torch.no_grad()."]
    return []


def check_drift(attempt: Callable[[float, int], float]) -> Verdict:
    """Check `my_drift(momentum, num_microbatches)`.

    Args:
        attempt: How far the running mean of an ordinary batch norm ends from that of the unsplit
            one, after a mini-batch whose micro-batches all have the same mean, 1 away from it.
    """
    numbers = ((0.1, 8), (0.1, 2), (0.5, 3), (0.1, 1), (1.0, 4))
    cases = [_drift_case(momentum, count) for momentum, count in numbers]
    return check_cases(attempt, cases, where='"How far does the memory move?"')


def _drift_case(momentum: float, count: int) -> Case:
    left = (1 - momentum) ** count
    right = (1 - momentum) - left
    known = (
        (left - (1 - momentum), "The sign: ask how far apart they are, as a number from 0 to 1."),
        (0.0, "Every micro-batch moves the running mean, so it moves more than once."),
        (1 - left, "That is how far the cut layer moves; the unsplit one moves too, by momentum."),
        (left, "That is how far it still is from the mean of the data, not from the other layer."),
        ((count - 1) * momentum, "Each move is a share of what is left, so the moves get smaller."),
        (count * momentum, "Each move is a share of what is left, so the moves get smaller."),
        (1 - (1 - momentum) ** (count - 1), "The first move is a part of the way already."),
    )
    hint = "After one move 1 - momentum is left of the way. After num_microbatches moves?"
    return Case(
        f"momentum {momentum}, {count} micro-batch{'es' * (count > 1)}",
        (momentum, count),
        right,
        known,
        hint,
    )


def check_merged(attempt: Callable[..., tuple[float, float]]) -> Verdict:
    """Check `my_merged(counts, means, variances)`.

    Args:
        attempt: Takes count, mean and unbiased variance of each micro-batch, returns mean and
            unbiased variance of the mini-batch.
    """
    groups = (
        ([1.0, 3.0], [5.0, 9.0]),
        ([1.0, 2.0, 6.0], [4.0, 8.0]),
        ([2.5, 3.5, 7.0, -1.0],),
        ([0.0, 4.0], [1.0, 3.0], [2.0, 2.5, 1.5]),
    )
    cases = [_merged_case([torch.tensor(g, dtype=torch.float64) for g in each]) for each in groups]
    return check_cases(attempt, cases, where='"Can the memory be put right?"')


def _merged_case(groups: list[Tensor]) -> Case:
    counts = [len(group) for group in groups]
    means = [group.mean().item() for group in groups]
    variances = [group.var().item() for group in groups]
    everything, total = torch.cat(groups), sum(counts)
    right = everything.mean().item(), everything.var().item()
    plain_mean = sum(means) / len(means)
    rows = list(zip(counts, variances, strict=True))
    within = sum((n - 1) * v for n, v in rows)
    between = sum(n * (m - right[0]) ** 2 for n, m in zip(counts, means, strict=True))
    lost = "The spread between the micro-batches' means is lost: they differ, too."
    variance_only = [
        (sum(variances) / len(variances), lost),
        (sum(n * v for n, v in rows) / total, lost),
        (within / max(total - len(counts), 1), lost),
        (within / (total - 1), lost),
        (within / total, lost),
        (
            (within + between) / total,
            "Divide by the number of values less one, as torch does here.",
        ),
        (
            (sum(n * v for n, v in rows) + between) / (total - 1),
            "A micro-batch's sum of squares is its variance times (count - 1).",
        ),
        (
            (sum(n * v for n, v in rows) + between) / total,
            "These variances are unbiased: a sum of squares is variance times (count - 1).",
        ),
        (right[1] ** 0.5, "That is the standard deviation; the variance is asked for."),
    ]
    counted = "Micro-batches of different sizes: each mean counts by its number of values."
    known = [((right[0], wrong), message) for wrong, message in variance_only]
    shift = sum(n * (m - plain_mean) ** 2 for n, m in zip(counts, means, strict=True))
    wrong_variances = [right[1], (within + shift) / (total - 1), *(v for v, _ in variance_only)]
    known += [((plain_mean, wrong), counted) for wrong in wrong_variances]
    given = f"counts {short(counts)}, means {short(means)}, variances {short(variances)}"
    hint = "Add up the squares around the common mean: within each micro-batch, and of its mean."
    return Case(given, (counts, means, variances), right, known, hint, _same_pair)


def _same_pair(result: Any, expected: tuple[float, float]) -> bool:
    """`same`, where a pair may also be a tensor, or an array, of two numbers."""
    return same(result.tolist() if hasattr(result, "tolist") else result, list(expected))
