"""Checks: equal to one process, hooks that average, shards of a data set."""

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mpcourse.checks.attempted_hooks import hooks_problem
from mpcourse.checks.verdict import (
    Verdict,
    correct,
    no_function,
    not_attempted,
    not_yet,
    short,
    try_out,
)

SHARDS = '"Without the sampler, is the loss wrong?"'
EQUAL = '"Average or sum?"'
HOOKS = '"Who averages, and when?"'


def check_hooks(attempt: Callable[..., Any]) -> Verdict:
    """Check `my_hooks(module, all_reduce, count)`: gradients are averages after each backward.

    Args:
        attempt: Registers hooks on the module's parameters. `all_reduce(tensor)` adds up over all
            ranks, in place.
    """
    if not callable(attempt):
        return no_function(attempt, HOOKS)
    for count, frozen in ((2, False), (3, False), (3, True)):
        lines = hooks_problem(attempt, count, frozen=frozen)
        if lines is ...:
            return not_attempted()
        if lines:
            given = f"{count} ranks{', the first weight frozen' if frozen else ''}:"
            return not_yet([given, *lines], HOOKS)
    return correct("Averages after every backward, with 2 and 3 ranks, and with a frozen weight.")


def check_shard(attempt: Callable[[int, int, int, int], Sequence[int]]) -> Verdict:
    """Check `my_shard(samples, rank, count, epoch)`: this rank's part, shuffled anew each epoch.

    Args:
        attempt: Returns a list of sample numbers. Over all ranks each of `samples` stands in one
            list exactly once, the lists' lengths differ by at most one, and another epoch gives
            another order.
    """
    if not callable(attempt):
        return no_function(attempt, SHARDS)
    cases = [(8, 2), (10, 4), (3, 4), (101, 3), (64, 1)]
    for samples, count in cases:
        given = f"Given {samples} samples, {count} rank(s), epoch 5:"
        parts = []
        for rank in range(count):
            torch.manual_seed(rank), random.seed(rank)  # as in processes of their own
            part = _dealt(attempt, samples, rank, count, 5)
            if part is ...:
                return not_attempted()
            if isinstance(part, str):
                return not_yet([given, part], SHARDS)
            parts.append(part)
        lines = _wrong_parts(parts, samples, count)
        if lines:
            return not_yet([given, *lines], SHARDS)
    return _shuffled(attempt) or correct(
        f"Nothing lost, nothing doubled, in {len(cases)} cases; every epoch has its own order."
    )


def _dealt(attempt: Callable[..., Any], samples: int, rank: int, count: int, epoch: int) -> Any:
    """The numbers that a rank gets; `...` for a stub, a text if they are no list of numbers."""
    part, problem = try_out(attempt, samples, rank, count, epoch)
    if problem:
        return f"on rank {rank} {problem}"
    if part is ...:
        return ...
    try:
        return [int(number) for number in part]
    except (TypeError, ValueError):
        return f"rank {rank} got {short(part)}; expected a list of sample numbers."


def _wrong_parts(parts: list[list[int]], samples: int, count: int) -> list[str] | None:
    seen = sorted(number for part in parts for number in part)
    shown = [f"rank {rank} got {short(part)}" for rank, part in enumerate(parts)]
    if count > 1 and all(sorted(part) == list(range(samples)) for part in parts):
        return [*shown, "Every rank has all of them: each is trained on once per rank."]
    strange = [number for number in seen if not 0 <= number < samples]
    if strange:
        return [*shown, f"There is no sample {strange[0]}: they are numbered from 0."]
    doubled = sorted({number for number in seen if seen.count(number) > 1})
    lost = sorted(set(range(samples)) - set(seen))
    if doubled and lost:
        line = f"{len(lost)} samples are lost and {len(doubled)} doubled"
        return [*shown, f"{line}: all ranks have to shuffle in the same order."]
    if doubled:
        line = f"Doubled: {short(doubled)}. DistributedSampler does that to make lists equal."
        return [*shown, line, "Here the lists may differ by one."]
    if lost:
        return [*shown, f"Lost: {short(lost)}. The remainder of the division is somebody's too."]
    sizes = [len(part) for part in parts]
    if max(sizes) - min(sizes) > 1:
        return [*shown, f"The sizes are {sizes}: they may differ by one at most."]
    return None


def _shuffled(attempt: Callable[..., Sequence[int]]) -> Verdict | None:
    states = _generators()
    dealt = {
        epoch: [_dealt(attempt, 101, rank, 3, epoch) for rank in range(3)] for epoch in (0, 1, 2)
    }
    again = _dealt(attempt, 101, 1, 3, 0)
    for epoch, parts in [*dealt.items(), (0, [again])]:
        for part in parts:
            if isinstance(part, str):
                return not_yet([f"Given 101 samples, 3 rank(s), epoch {epoch}:", part], SHARDS)
    changed = [name for name, state in _generators().items() if state != states[name]]
    first, second = dealt[0][1], dealt[1][1]
    if sorted(first) == sorted(second):
        where = [f"epoch 0: rank 1 of 3 got {short(first)}", f"epoch 1: {short(second)}"]
        line = "Every epoch deals out the same samples: shuffle all of them, by the epoch's number."
        return not_yet([*where, line], SHARDS)
    if first != again:
        line = "Epoch 0, asked for twice, has two orders: the epoch's number has to decide."
        return not_yet([line], SHARDS)
    if any(_neighbours_stay(dealt[0], dealt[epoch]) for epoch in (1, 2)):
        line = "From epoch to epoch the order is only moved on: who stood side by side still does."
        return not_yet([line, "Draw a new order for every epoch."], SHARDS)
    if changed:
        line = f"It seeds {changed[0]}'s own generator: other random numbers then repeat, too."
        return not_yet([line, "Make a generator of its own."], SHARDS)
    return None


def _generators() -> dict[str, str]:
    """The state of each generator that belongs to everybody."""
    return {
        "torch": str(torch.get_rng_state().tolist()),
        "random": str(random.getstate()),
        "numpy": str([np.asarray(part).tolist() for part in np.random.get_state()]),  # noqa: NPY002
    }


def _neighbours_stay(one: list[list[int]], other: list[list[int]]) -> bool:
    """Whether most samples are followed by the same sample in two epochs."""
    pairs = [
        {pair for part in parts for pair in itertools.pairwise(part)} for parts in (one, other)
    ]
    return 2 * len(pairs[0] & pairs[1]) > len(pairs[0])


def check_local_loss(attempt: Callable[[Tensor, int, int], Tensor]) -> Verdict:
    """Check `my_local_loss(losses, total, count)`: DDP's average equals one process's gradient.

    Args:
        attempt: Takes this rank's losses, one per sample, the number of samples on all ranks and
            the number of ranks. Returns the number whose gradient is averaged over the ranks.
    """
    if not callable(attempt):
        return no_function(attempt, EQUAL)
    # three ranks first: with two, a factor of count could be one of something else
    cases = [(4, 4, 4), (5, 3), (1, 4, 2), (6, 0), (7,)]
    for sizes in cases:
        given = f"Given {len(sizes)} rank(s) with {', '.join(map(str, sizes))} samples:"
        outcome = _averaged_gradient(attempt, sizes)
        if outcome is ...:
            return not_attempted()
        if isinstance(outcome, str):
            return not_yet([given, outcome], EQUAL)
        lines = _wrong_gradient(outcome, sizes)
        if lines:
            return not_yet([given, *lines], EQUAL)
    return correct(f"The gradient of one process in {len(cases)} cases, even and uneven.")


def _linear(sizes: Sequence[int]) -> tuple[nn.Linear, list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(sum(sizes))
    net = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, -2.0]]))
    rows = torch.randn(sum(sizes), 2, generator=generator).double() + 1
    targets = torch.randn(sum(sizes), 1, generator=generator).double()
    return net, list(rows.split(list(sizes))), list(targets.split(list(sizes)))


def _averaged_gradient(attempt: Callable[..., Any], sizes: Sequence[int]) -> Any:
    """What DDP would leave: the mean over the ranks; `...` for a stub, a text if it fails."""
    net, rows, targets = _linear(sizes)
    total = torch.zeros_like(net.weight)
    for rank, (row, target) in enumerate(zip(rows, targets, strict=True)):
        losses = (net(row) - target).square().flatten()
        loss, problem = try_out(attempt, losses, sum(sizes), len(sizes))
        if loss is ...:
            return ...
        if problem:
            return f"on rank {rank} {problem}"
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            wanted = "expected a tensor of one number that backward() can use."
            return f"rank {rank} got {short(loss)}; {wanted}"
        if not torch.isfinite(loss).all():
            words = "the mean of no samples" if len(row) == 0 else "no number"
            return f"rank {rank} has {len(row)} samples and got {short(loss)}: {words}."
        net.zero_grad()
        loss.sum().backward()
        if net.weight.grad is None:
            lacks = "the weights are not in it, so its backward calls no hook and the others wait"
            return f"rank {rank} got {short(loss)}: {lacks}. Begin with losses.sum()."
        total += net.weight.grad
    return total / len(sizes)


def _wrong_gradient(found: Tensor, sizes: Sequence[int]) -> list[str] | None:
    net, rows, targets = _linear(sizes)
    losses = (net(torch.cat(rows)) - torch.cat(targets)).square()
    wanted = torch.autograd.grad(losses.mean(), net.weight)[0]
    if torch.allclose(found, wanted, rtol=1e-9):
        return None
    count, total = len(sizes), sum(sizes)
    means = _averaged_gradient(lambda losses, *_: losses.mean(), sizes)
    lines = [f"expected the gradient {short(wanted)}", f"got, averaged, {short(found)}"]
    if torch.allclose(found, means):
        line = "A mean of means: a sample of a small shard counts for more. Weight by samples."
        return [*lines, line]
    known = {
        1 / count: f"It is 1/{count} of it: DDP divides by the ranks, so multiply by them.",
        1 / count**2: "Divided by the ranks twice: DDP divides already, so multiply by them.",
        total / count: "Summed, not averaged: divide by the samples of all ranks.",
        float(total): "Neither divided by the samples nor left to DDP to average.",
        total / count**2: "DDP divides by the ranks already: divide by all samples, total.",
        count / total: "A mean has divided by this rank's samples already: begin with the sum.",
        1 / total: "A mean has divided by this rank's samples already: begin with the sum.",
        float(count): "Too large by the number of ranks: once is enough.",
    }
    for factor, line in known.items():
        if torch.allclose(found, wanted * factor):
            return [*lines, line]
    return lines
