"""Does a function notice ranks that hold different tensors? Tried on threads as ranks."""

from collections.abc import Callable
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mpcourse.checks.verdict import short, try_out
from mpcourse.multiprocess.in_threads import ranks_in_threads

WAIT_S = 5.0  # for ranks that do not send the same messages
CANCEL = "Differences can cancel in a sum or a mean: compare number by number, with an extreme."
EVERY = "Every rank has to give the same answer, also one that agrees with rank 0 or the mean."
TRIALS: list[tuple[str, list[list[float]], str]] = [
    ("equal tensors on 2 ranks", [[1.0, 2.0]] * 2, "They are equal."),
    ("[1, 2] and [2, 1]", [[1.0, 2.0], [2.0, 1.0]], CANCEL),
    ("[0], [1] and [2]", [[0.0], [1.0], [2.0]], EVERY),
    ("[0], [0] and [3]", [[0.0], [0.0], [3.0]], EVERY),
    ("[-1] and [1]", [[-1.0], [1.0]], "The size is the same, the sign is not."),
    ("[1] and [1.000001]", [[1.0], [1.000001]], "A small drift is a drift: ask for equality."),
    ("equal tensors on 3 ranks", [[0.1, -0.7]] * 3, "They are equal, whatever a mean rounds to."),
]


def meter_problem(
    attempt: Callable[[Tensor, ProcessGroup], Any],
) -> list[str] | EllipsisType | None:
    """What is wrong with the attempt; `...` where it returns just that."""
    for given, values, hint in TRIALS:
        tensors, found, problem = _tried(attempt, values)
        lines = [f"Given {given}:"]
        if problem:
            return [*lines, problem, "Do all ranks send the same messages, in one order?"]
        if any(answer is ... for answer in found):
            return ...
        if any(not torch.equal(t, torch.tensor(v)) for t, v in zip(tensors, values, strict=True)):
            return [*lines, "The tensor has changed: an all-reduce replaces it, so give it a copy."]
        right = all(value == values[0] for value in values)
        if any(not _is_answer(answer) for answer in found):
            return [*lines, f"expected True or False on each rank, got {short(found)}"]
        if any(bool(answer) != right for answer in found):
            return [*lines, f"expected {right} on every rank, got {short(found)}", hint]
    return None


def _tried(
    attempt: Callable[[Tensor, ProcessGroup], Any], values: list[list[float]]
) -> tuple[list[Tensor], Any, str | None]:
    tensors = [torch.tensor(value) for value in values]

    def program(group: ProcessGroup) -> Any:
        return attempt(tensors[group.rank()], group)

    ranks = len(values)
    return tensors, *try_out(lambda: ranks_in_threads(program, ranks, timeout_s=WAIT_S))


def _is_answer(answer: Any) -> bool:
    if isinstance(answer, Tensor):
        return answer.dtype == torch.bool and answer.numel() == 1
    return isinstance(answer, bool)
