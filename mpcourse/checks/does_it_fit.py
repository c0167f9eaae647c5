"""Checks: saved bytes, the largest batch, a part not to be recomputed, extra bytes, ranks."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mpcourse.checks.attempted_slips import one_step
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

# 1. What autograd saves


def check_saved_bytes(attempt: Callable[[nn.Module, Tensor], int]) -> Verdict:
    """Check `my_saved_bytes(model, inputs)`: activations that one forward saves.

    Args:
        attempt: Takes a module and a tensor; returns bytes, each storage once, without the
            parameters and the inputs.
    """
    torch.manual_seed(12)  # numbers do not matter here, only sizes do
    twice = _Twice()
    nets = [
        ("Linear 4-8 and Tanh, 10 rows", _sequential(4, 8), (10, 4), 320, 320),
        ("two layers 4-8-16, 10 rows", _sequential(4, 8, 16), (10, 4), 960, 1280),
        ("a result that is saved three times", twice, (5, 6), 120, 360),
    ]
    cases = [
        Case(
            given,
            (net, torch.randn(shape)),
            expected,
            known=_wrong_sums(net, shape, expected, every),
            hint="Add up the bytes of each storage that is saved, once.",
        )
        for given, net, shape, expected, every in nets
    ]
    return check_cases(attempt, cases, where='"What does autograd keep?"')


class _Twice(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs.requires_grad_().exp()  # saves its result; the product saves it twice
        return (hidden * hidden).sum(0)


def _sequential(*widths: int) -> nn.Sequential:
    return nn.Sequential(
        *[layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
    )


def _wrong_sums(
    net: nn.Module, shape: tuple[int, ...], expected: int, every: int
) -> list[tuple[int, str]]:
    inputs = 4 * torch.Size(shape).numel()
    weights = [p.nbytes for p in net.parameters() if p.dim() == 2]
    weights = sum(weights[1:])  # the first is not saved: nobody asks for the inputs' gradient
    result = net(torch.zeros(shape)).nbytes
    wrong = {
        expected + result: "What the net returns counts here too: does the backward need it?",
        every: "This counts a storage as often as it is saved: two layers can save the same.",
        expected // 4: "These are numbers, not bytes: a float32 has four bytes.",
        expected + inputs: "The inputs count here too: they are held anyway.",
        expected + weights: "The parameters count here too: they are held anyway.",
    }
    return [(value, words) for value, words in wrong.items() if value != expected]


# 2. The largest batch


def check_largest_batch(attempt: Callable[[int, int, int, int], int]) -> Verdict:
    """Check `my_largest_batch(resident, gradients, per_sample, limit)`.

    Args:
        attempt: Takes bytes held between steps, of the gradients, of a sample's activations, and
            of the device; returns how many samples fit, 0 if none does.
    """
    cases = []
    for numbers in [(10, 2, 3, 20), (10, 4, 1, 20), (10, 8, 1, 17), (30, 0, 2, 20), (6, 5, 4, 17)]:
        resident, gradients, per_sample, limit = numbers
        room = limit - resident
        right = 0 if max(gradients, per_sample) > room else room // per_sample
        wrong = {
            (room - gradients) // per_sample: "Gradients come while activations go: the larger "
            "of the two has to fit, not both.",
            limit // per_sample: "What is held between two steps takes its room too.",
            -(-room // per_sample): "This rounds up: the last sample does not fit.",
            room // per_sample: "Not even an empty step fits here: no batch does.",
        }
        names = "resident, gradients, per_sample, limit"
        known = [(value, words) for value, words in wrong.items() if value != right]
        cases.append(Case(f"{names} = {numbers}", numbers, right, known=known))
    return check_cases(attempt, cases, where='"What does a training step hold?"')


# 3. A part that must not be recomputed


def check_slip(attempt: Callable[[], nn.Module]) -> Verdict:
    """Check `my_slip()`: a module that torch's `checkpoint` changes without a word.

    Args:
        attempt: Takes nothing; returns a module for inputs of shape (8, 4).
    """
    where = '"Which slips does a second forward make?"'
    if not callable(attempt):
        return no_function(attempt, where)
    part, problem = try_out(attempt)
    if part is ...:
        return not_attempted()
    if problem or not isinstance(part, nn.Module):
        return not_yet([problem or f"expected a module, got {short(part)}"], where)
    twin = copy.deepcopy(part)
    plain, problem = try_out(one_step, part, nn.Module.__call__)
    if problem:
        return not_yet(["Without checkpoint, on inputs of shape (8, 4):", problem], where)
    again, problem = try_out(one_step, twin, partial(checkpoint, use_reentrant=False))
    if problem:
        return not_yet(["This one is noticed; find one that is silent:", problem], where)
    if any(not torch.equal(a, b) for a, b in zip(plain, again, strict=True)):
        return correct("With checkpoint, its gradients or its buffers differ, and nothing is said.")
    hint = "What does a module change in itself while it runs forward?"
    if any(isinstance(module, nn.Dropout) for module in part.modules()):
        hint = "torch draws a dropout's numbers again as they were: it knows of this slip."
    return not_yet(["Gradients and buffers are the same with checkpoint as without.", hint], where)


# 4. Extra bytes


def check_extra_bytes(attempt: Callable[[Callable[[], Any], list[Tensor]], int]) -> Verdict:
    """Check `my_extra_bytes(step, held)`: the most that the tensors made by `step()` hold at once.

    Args:
        attempt: Takes a function and the tensors that were there before; returns bytes.
    """
    old, hint = torch.ones(50), "Count what is made within the step, and remember the most."
    cases = []
    for given, step, held, right, left, made in [
        ("one tensor of 100 numbers", _one, [], 400, 0, 400),
        ("a tensor of 100 numbers and a view of it", _view, [], 400, 0, 400),
        ("ten tensors of 100 numbers, one after the other", _in_turn, [], 800, 0, 4000),
        ("a tensor of 1000 numbers, freed, then one of 10", _early, [], 4000, 0, 4040),
        ("50 old numbers, changed in place", partial(Tensor.add_, old, 1), [old], 0, 0, 0),
        ("a view of 50 old numbers", partial(Tensor.view, old, 5, 10), [old], 0, 0, 0),
    ]:
        wrong = {
            left: "That is what is left at the end: the peak came earlier.",
            made: "That is all that was ever made: what is freed makes room.",
            right + sum(old.nbytes for old in held): "What was there before counts here, too.",
        }
        known = [(value, words) for value, words in wrong.items() if value != right]
        cases.append(Case(given, (step, held), right, known=known, hint=hint))
    return check_cases(attempt, cases, where='"How do you count bytes?"')


def _one() -> None:
    torch.ones(100)


def _view() -> None:
    torch.ones(100)[:50].view(5, 10)


def _in_turn() -> None:
    for _ in range(10):
        held = torch.ones(100)  # the last one goes when the next one is there
    del held


def _early() -> None:
    torch.ones(1000)
    torch.ones(10)


# 5. Bytes of a rank


def check_bytes_of_a_rank(attempt: Callable[[list[int], int, int], int]) -> Verdict:
    """Check `my_bytes_of_a_rank(sizes, ranks, stage)`: float32 and Adam, after the backward.

    Args:
        attempt: Takes the numbers of each parameter, how many ranks there are, and the stage of
            sharding, 0 to 3; returns the bytes of weights, gradients and state on rank 0.
    """
    order = "State is shared out from stage 1 on, gradients from stage 2 on, weights in stage 3."
    missing = "For each number there are a weight, a gradient and Adam's two averages."
    cases = []
    for sizes, ranks, stage in [
        ([12, 8], 1, 0),
        ([12, 8], 4, 0),
        ([12, 8], 4, 1),
        ([12, 8], 4, 2),
        ([12, 8], 4, 3),
        ([7, 5], 2, 1),
        ([10, 5, 1, 1], 4, 3),
    ]:
        right = _of_a_rank(sizes, ranks, stage)
        wrong = {
            right // 4: "These are numbers, not bytes: a float32 has four bytes.",
            _of_a_rank(sizes, ranks, stage, tensors=(1, 1, 1)): missing,
            _of_a_rank(sizes, ranks, stage, tensors=(1, 0, 2)): missing,
            _of_a_rank(sizes, ranks, stage - 1): order,
            _of_a_rank(sizes, ranks, stage + 1): order,
            _of_a_rank(sizes, ranks, 3): f"In stage {stage} not all is shared out. {order}",
            _of_a_rank([sum(sizes)], ranks, stage): "Each parameter is cut by itself.",
        }
        if any(size % ranks for size in sizes):
            wrong[_of_a_rank(sizes, ranks, stage, add=0)] = "Rank 0's part is rounded up."
        known = [(value, words) for value, words in wrong.items() if value != right]
        given = f"sizes, ranks, stage = {sizes}, {ranks}, {stage}"
        cases.append(Case(given, (sizes, ranks, stage), right, known=known))
    return check_cases(attempt, cases, where='"What can several ranks share?"')


def _of_a_rank(
    sizes: Sequence[int],
    ranks: int,
    stage: int,
    *,
    tensors: tuple[int, int, int] = (1, 1, 2),
    add: int = 1,
) -> int:
    """Bytes of so many tensors of weights, gradients and state; parts get `add` to be rounded."""
    whole, part = sum(sizes), sum((size + add * (ranks - 1)) // ranks for size in sizes)
    held = zip(tensors, (3, 2, 1), strict=True)
    return 4 * sum(count * (part if stage >= first else whole) for count, first in held)
