"""A loss over a cut vocabulary, tried on threads as ranks; what people write instead."""

from collections.abc import Callable
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, distributed, nn

from mpcourse.checks.verdict import short, try_out
from mpcourse.multiprocess.in_threads import ranks_in_threads

TOKENS, PER_RANK = 5, 4
WAIT_S = 5.0  # for ranks that do not send the same messages


def loss_problem(
    attempt: Callable[..., Any], scale: float, ranks: int
) -> list[str] | EllipsisType | None:
    """What is wrong with the attempt on random logits; `...` where it returns just that."""
    draw = torch.Generator().manual_seed(ranks)
    whole = scale * torch.randn(TOKENS, ranks * PER_RANK, generator=draw).double()
    whole[:, 1] += 3 * scale  # of rank 0, so that the maxima of the ranks differ
    targets = torch.randperm(ranks * PER_RANK, generator=draw)[:TOKENS]
    sent: list[int] = []

    def program(group: Any) -> Any:
        def reduced(operation: Any) -> Callable[[Tensor], Tensor]:
            def reduce(tensor: Tensor) -> Tensor:
                total = tensor.detach().clone().contiguous()
                distributed.all_reduce(total, operation, group)
                if group.rank() == 0:
                    sent.append(total.numel())
                return total

            return reduce

        first = group.rank() * PER_RANK
        logits = whole[:, first : first + PER_RANK].clone()
        operations = (distributed.ReduceOp.MAX, distributed.ReduceOp.SUM)
        return attempt(logits, targets.clone(), first, *map(reduced, operations))

    losses, problem = try_out(lambda: ranks_in_threads(program, ranks, timeout_s=WAIT_S))
    if problem:
        hint = "All ranks have to call all_max and all_sum equally often, in one order."
        if "out of" in problem:  # "out of bounds", "out of range"
            hint = "Only one rank has a token's right score: which place do the others read?"
        return [problem, hint]
    if any(loss is ... for loss in losses):
        return ...
    right = nn.functional.cross_entropy(whole, targets).item()
    for rank, loss in enumerate(losses):
        if lines := _wrong(loss, right, whole, targets, ranks):
            return [f"expected {right:.7g} on every rank, got {short(loss)} on rank {rank}", *lines]
    if sum(sent) > 4 * TOKENS:
        line = f"The loss is right, but {sum(sent) / TOKENS:g} numbers were sent for each token."
        return [line, "Three are enough: a maximum, a sum of exponentials, the right score."]
    return None


def _wrong(loss: Any, right: float, whole: Tensor, targets: Tensor, ranks: int) -> list[str]:
    """Why the loss is what it is, if it is one that people get; [] where it is right."""
    if not isinstance(loss, float | int | Tensor) or (
        isinstance(loss, Tensor) and loss.numel() != 1
    ):
        return ["Return one number: the mean over the tokens."]
    value = float(loss)
    if abs(value - right) <= 1e-9 * max(1.0, abs(right)):
        return []
    if value != value or value in (float("inf"), float("-inf")):
        return ["An exponential is too large to be written down: subtract a maximum before."]
    for other, line in _known(right, whole, targets, ranks):
        if abs(value - other) <= 1e-9 * max(1.0, abs(other)):
            return [line]
    return ["The loss of a token is log(sum of exp(score - max)) - (right score - max)."]


def _known(right: float, whole: Tensor, targets: Tensor, ranks: int) -> list[tuple[float, str]]:
    """Wrong losses that people get, each with what it shows."""
    parts = whole.reshape(TOKENS, ranks, PER_RANK)
    own = parts.amax(dim=2, keepdim=True)
    own_shift, top = parts - own, whole.amax(dim=1)
    score = whole.gather(1, targets.unsqueeze(1)).squeeze(1)
    total = (whole - top.unsqueeze(1)).exp().sum(dim=1).log()
    own_total = own_shift.exp().sum(dim=(1, 2)).log()
    own_score = own_shift.reshape(TOKENS, -1).gather(1, targets.unsqueeze(1)).squeeze(1)
    found = [
        (own_total - own_score, "Each rank subtracts its own maximum: take that of all ranks."),
        (own_total - (score - top), "Sums of exponentials add up only with one maximum for all."),
        (total - score, "The maximum was subtracted in the sum, but not from the right score."),
        (total + top - (score - top), "The maximum comes off both or neither of the two."),
        (-(score - top), "The sum of the exponentials is missing."),
    ]
    known = [(losses.mean().item(), line) for losses, line in found]
    shifted = whole - top.unsqueeze(1)
    for fill in _not_masked(shifted, targets, ranks):
        line = "A rank without the right token adds 0 to the right score, not another token's."
        known.append(((total - fill).mean().item(), line))
    local = [torch.logsumexp(parts[:, rank], dim=1) for rank in range(ranks)]
    known += [
        ((part - score).mean().item(), "This rank's exponentials only: the sum goes over all.")
        for part in local
    ]
    return [*known, (right * TOKENS, "This is the sum over the tokens: take the mean.")]


def _not_masked(shifted: Tensor, targets: Tensor, ranks: int) -> list[Tensor]:
    """The right scores if ranks without the token take their first, last or wrapped one."""
    parts, sums = shifted.reshape(TOKENS, ranks, PER_RANK), []
    for place in (
        lambda row: row.clamp(0, PER_RANK - 1),
        lambda row: row % PER_RANK,
        lambda row: row.where((row >= 0) & (row < PER_RANK), 0),
    ):
        picked = [
            parts[:, rank].gather(1, place(targets - rank * PER_RANK).unsqueeze(1)).squeeze(1)
            for rank in range(ranks)
        ]
        sums.append(torch.stack(picked).sum(dim=0))
    return sums
