"""Tries hooks that average gradients: what each gradient is after a backward, and what it lacks."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.verdict import short, try_out

Gradients = dict[str, Tensor]


def hooks_problem(attempt: Callable[..., Any], count: int, *, frozen: bool) -> Any:
    """What is wrong with the attempt; None if nothing is, `...` for a stub.

    Args:
        attempt: `my_hooks(module, all_reduce, count)`; what it returns does not matter, but `...`.
        count: How many ranks; all but rank 0 are played here.
        frozen: Whether the first weight takes no part.
    """
    torch_state = torch.get_rng_state()
    torch.default_generator.manual_seed(count)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    batches = torch.randn(2, count, 4, 2).double()
    torch.set_rng_state(torch_state)
    net[0].weight.requires_grad_(not frozen)
    plain = copy.deepcopy(net)
    others = _Others(count)
    result, problem = try_out(attempt, net, others.all_reduce, count)
    if result is ...:
        return ...
    if problem:
        return [f"while the hooks were made, {problem}", *_while_made(problem)]
    for step, batch in enumerate(batches):
        ranks = [_gradients(plain, rows) for rows in batch]
        others.begin(ranks)
        net.zero_grad()
        _, problem = try_out(lambda rows: net(rows).square().mean().backward(), batch[0])
        if problem:
            return [f"in the backward of step {step} {problem}"]
        if lines := _wrong_gradients(net, ranks, others.handed):
            return [f"after the backward of step {step}:", *lines]
    return None


def _gradients(plain: nn.Module, rows: Tensor) -> Gradients:
    plain.zero_grad()
    plain(rows).square().mean().backward()
    return {n: p.grad.clone() for n, p in plain.named_parameters() if p.grad is not None}


class _Others:
    """All ranks but rank 0: an all-reduce adds what they have."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._ranks: list[Gradients] = []
        self.handed: Counter[str] = Counter()

    def begin(self, ranks: list[Gradients]) -> None:
        """A new backward."""
        self._ranks = ranks
        self.handed.clear()

    def all_reduce(self, tensor: Tensor) -> None:
        """Add up over all ranks, in place."""
        if not isinstance(tensor, Tensor):
            words = f"all_reduce got {short(tensor)}: this gradient has not arrived yet"
            raise ValueError(f"{words}; the hook's argument is the parameter whose gradient has")
        for name, mine in self._ranks[0].items() if self._ranks else ():
            for scale in (1.0, 1 / self._count):
                if tensor.shape == mine.shape and torch.allclose(tensor, mine * scale, rtol=1e-9):
                    with torch.no_grad():
                        tensor += sum(rank[name] for rank in self._ranks[1:]) * scale
                    self.handed[name] += 1
                    return
        raise ValueError(
            "all_reduce got what is no gradient of this rank, or is summed already; "
            "the hook's argument is the parameter whose gradient has arrived: that one, once"
        )


def _while_made(problem: str) -> list[str]:
    if "doesn't require gradient" in problem or "require grad" in problem:
        return ["A frozen parameter gets no gradient, and takes no hook: leave it out."]
    if "all_reduce got" in problem or "NoneType" in problem:
        return ["No backward has run yet: register a function, do not call it."]
    return []


def _wrong_gradients(
    net: nn.Module, ranks: list[Gradients], handed: Counter[str]
) -> list[str] | None:
    count = len(ranks)
    for name, own in ranks[0].items():
        found = net.get_parameter(name).grad
        total = sum(rank[name] for rank in ranks)
        if found is not None and torch.allclose(found, total / count, rtol=1e-9):
            continue
        lines = [f"{name}: expected {short(total / count)}", f"got {short(found)}"]
        if found is None:
            return lines
        known = [
            (total, f"That is the sum: divide by the {count} ranks."),
            (own, "That is this rank's own gradient: nothing was handed to all_reduce."),
            (own / count, "It was divided, but not summed over the ranks."),
            (total / count**2, "It was divided twice."),
        ]
        if not handed[name]:
            known[1:2] = [(own, "No hook of this parameter has changed its gradient.")]
        meant = [words for wrong, words in known if torch.allclose(found, wrong, rtol=1e-9)]
        return [*lines, *meant[:1]]
    return None
