"""Checks of page `cut_inside_a_layer`: parts of an MLP, bytes, a cut loss, its slip, drift."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mpcourse.checks.attempted_losses import loss_problem
from mpcourse.checks.attempted_meters import meter_problem
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    short,
    try_out,
)


def check_mlp_parts(attempt: Callable[..., Any]) -> Verdict:
    """Check `my_parts(up_weight, up_bias, down_weight, rank, ranks)`: what a rank holds of an MLP.

    Args:
        attempt: Takes the tensors as `nn.Linear` stores them; returns the rank's three parts.
    """
    cases = [_parts_case(4, 6, rank, ranks) for rank, ranks in ((0, 2), (1, 2), (2, 3), (0, 1))]
    return check_cases(attempt, cases, where='"May the sum come after the bend?"')


def _parts_case(width: int, inner: int, rank: int, ranks: int) -> Case:
    up = torch.arange(float(inner * width)).reshape(inner, width)
    bias, down = 100 + torch.arange(float(inner)), up.T.clone() + 200
    own = slice(rank * inner // ranks, (rank + 1) * inner // ranks)
    along = slice(rank * width // ranks, (rank + 1) * width // ranks)
    stored = "nn.Linear stores W transposed: the columns of W are the rows of `weight`."
    turned = "Down is cut by rows of W: these are columns of its stored `weight`."
    known = [
        ((up[:, along], bias[own], down[along]), stored),
        ((up[:, along], bias, down[along]), stored),
        ((up[:, along], bias[own], down[:, own]), stored),
        ((up[own], bias[own], down[along]), turned),
        ((up[own], bias[own], down[own]), turned),
        ((up[own], bias, down[:, own]), "Each output of `up` has its own number of the bias."),
        ((up[own], bias / ranks, down[:, own]), "A bias is cut like the outputs, not divided."),
        (
            (up[rank::ranks], bias[rank::ranks], down[:, rank::ranks]),
            "The sum would be right, but neighbours belong together here: one day they are a head.",
        ),
        ((up[own], bias[own], down), "Down is cut, too: it takes the numbers that are here."),
    ]
    given = f"width {width}, {inner} inner numbers, rank {rank} of {ranks}"
    right = (up[own], bias[own], down[:, own])
    hint = "Return three tensors: what a rank's inner numbers need of up, of its bias, of down."
    return Case(given, (up, bias, down, rank, ranks), right, known, hint)


def check_block_bytes(attempt: Callable[[int, int, int, int], float]) -> Verdict:
    """Check `my_block_bytes(tokens, width, itemsize, ranks)`: what a rank sends for one block.

    Args:
        attempt: Returns the bytes of the forward and the backward, all-reduces being rings.
    """
    sizes = [(10, 6, 8, 6), (512, 256, 4, 4), (100, 30, 2, 3), (512, 256, 4, 1)]
    where = '"What does a block send?"'
    return check_cases(attempt, [_bytes_case(*size) for size in sizes], where=where)


def _bytes_case(tokens: int, width: int, itemsize: int, ranks: int) -> Case:
    tensor, share = tokens * width * itemsize, (ranks - 1) / ranks
    right = 8 * share * tensor
    alone = "One rank has nobody to send to."
    known = [
        (4 * share * tensor, "Half of it: count attention and MLP, each forward and backward."),
        (2 * share * tensor, "Count attention and MLP, and the backward of each."),
        (4 * tensor, "These are the tensors summed: a ring sends 2 (n - 1) / n of each."),
        (8 * tensor, alone if ranks == 1 else "In a ring each rank sends 2 (n - 1) / n, not 2."),
        (4 * (ranks - 1) * tensor, "A ring passes on parts: 2 (n - 1) / n of each sum, not n - 1."),
        (12 * share * tensor, "Query, key and value share one way in: one sum, not three."),
        (20 * share * tensor, "What is sent has the width between the layers, not that inside."),
        (32 * share * tensor, "What is sent has the width between the layers, not that inside."),
        (right / max(itemsize, 1), "Count bytes: each number has `itemsize` of them."),
        (right * ranks, "That is the sum over all ranks; the question is what one rank sends."),
    ]
    given = f"{tokens} tokens, width {width}, {itemsize} bytes per number, {ranks} rank(s)"
    hint = "All-reduces of a block, times what a ring sends of each, times the tensor's bytes."
    return Case(given, (tokens, width, itemsize, ranks), right, known, hint)


def check_cut_loss(attempt: Callable[..., Any]) -> Verdict:
    """Check `my_cut_loss(logits, targets, first, all_max, all_sum)`: a loss over a cut vocabulary.

    Args:
        attempt: Takes this rank's logits (tokens, V / n), all targets (tokens), the number of the
            first token that is here, and two functions that give the ranks' maximum and sum.
    """
    where = '"What is a loss made of?"'
    if not callable(attempt):
        return no_function(attempt, where)
    for name, scale, ranks in (("small", 1.0, 2), ("large", 300.0, 2), ("small", 1.0, 3)):
        lines = loss_problem(attempt, scale, ranks)
        if lines is ...:
            return not_attempted()
        if lines:
            return not_yet([f"Given {name} logits of 5 tokens on {ranks} ranks:", *lines], where)
    return correct("The loss is that of the whole logits, and few numbers per token are sent.")


def check_scores(attempt: Callable[[], Any]) -> Verdict:
    """Check `my_scores()`: scores for which a slip goes unnoticed, and others that show it.

    Args:
        attempt: Returns two lists of four scores, of which each of two ranks holds two.
    """
    where = '"What is a loss made of?"'
    if not callable(attempt):
        return no_function(attempt, where)
    found, problem = try_out(attempt)
    if problem:
        return not_yet([problem], where)
    if found is ...:
        return not_attempted()
    try:
        hidden, shown = (torch.as_tensor(scores).double().flatten() for scores in found)
    except (TypeError, ValueError, RuntimeError):
        return not_yet([f"expected two lists of four numbers, got {short(found)}"], where)
    for name, scores in (("first", hidden), ("second", shown)):
        if scores.shape != (4,) or not scores.isfinite().all():
            line = f"The {name} list has to have four finite numbers; got {short(scores)}"
            return not_yet([line], where)
    wrong = [_slipped(scores) for scores in (hidden, shown)]
    if wrong[0] > 1e-9:
        line = f"It is noticed in the first list: the loss is off by {wrong[0]:.3g}."
        return not_yet([line, "When do both ranks subtract the same number anyway?"], where)
    if wrong[1] < 1e-3:
        line = "The second list does not show it: the losses are equal up to 0.001."
        return not_yet([line, "What each rank subtracts has to differ."], where)
    return correct(f"Unnoticed in the first; in the second the loss is off by {wrong[1]:.3g}.")


def _slipped(scores: Tensor) -> float:
    """How far the loss is off, at most over targets, if each rank subtracts its own maximum."""
    parts = scores.reshape(2, 2)
    highest = parts.amax(dim=1, keepdim=True)
    total = (parts - highest).exp().sum()
    slip = total.log() - (parts - highest).flatten()
    return (slip - (scores.logsumexp(0) - scores)).abs().max().item()


def check_same(attempt: Callable[[Tensor, ProcessGroup], Any]) -> Verdict:
    """Check `my_same(tensor, group)`: do all ranks hold the same tensor? All get one answer.

    Args:
        attempt: Called on every rank, with its own tensor and its group.
    """
    where = '"Ranks that are threads"'
    if not callable(attempt):
        return no_function(attempt, where)
    lines = meter_problem(attempt)
    if lines is ...:
        return not_attempted()
    return not_yet(lines, where) if lines else correct("All ranks notice, whoever differs.")
