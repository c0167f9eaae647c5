"""Checks of page `scatter_and_gather`: scatter, nests, gather, the mean over uneven chunks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mpcourse.checks.attempted_nests import nest_case
from mpcourse.checks.verdict import Case, Verdict, borrows, check_cases, not_yet, try_out


def check_scatter(attempt: Callable[[Tensor, int], Sequence[Tensor]]) -> Verdict:
    """Check `my_scatter(batch, num_devices)`, which cuts as `torch.chunk` does.

    Args:
        attempt: Takes a tensor and a number of devices, returns the list of chunks.
    """
    shapes = [((6,), 2), ((7,), 3), ((5,), 4), ((1,), 3), ((9, 2), 4), ((16, 1), 5)]
    cases = [_scatter_case(torch.arange(_count(s)).reshape(s), n) for s, n in shapes]
    where = '"Seven rows, three devices: who gets how many?"'
    listed = _listed(attempt)
    verdict = check_cases(listed, cases, where=where)
    if verdict.state != "correct":
        return verdict
    given = (torch.ones(4, 2, requires_grad=True), 2)
    return (
        borrows(attempt, {"chunk", "scatter"}, "cut with slices instead.", where)
        or _keeps_gradient(listed, given, where)
        or verdict
    )


def _listed(attempt: Any) -> Any:
    """The attempt, as one that gives a list where it yields its results one by one."""
    if not callable(attempt):
        return attempt

    def listed(*given: Any) -> Any:
        result = attempt(*given)
        return list(result) if isinstance(result, Iterator) else result

    return listed


def _keeps_gradient(attempt: Callable[..., Any], given: tuple, where: str) -> Verdict | None:
    """Not yet, if some tensor that the attempt returns is cut off from its inputs."""
    result, problem = try_out(attempt, *given)
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    if problem is None and all(tensor.grad_fn for tensor in tensors):
        return None
    cut = problem or "The result is cut off from its inputs: no gradient can flow back."
    hint = (
        "Leave out detach, item, tolist and torch.tensor: slices and torch.cat keep the way open."
    )
    return not_yet(["Given tensors that require gradients:", cut, hint], where)


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _scatter_case(batch: Tensor, devices: int) -> Case:
    rows = len(batch)
    right = list(batch.chunk(devices))
    even = list(batch.tensor_split(devices))
    empties = right + [batch[:0]] * (devices - len(right))
    whole = max(rows // devices, 1)
    kept = [batch[start : start + whole] for start in range(0, whole * devices, whole)]
    dealt = [batch[index::devices] for index in range(devices)]
    known = (
        (even, "Those are tensor_split's sizes: as even as possible. scatter fills each chunk up."),
        (empties, "A device without rows gets no chunk at all: do not add empty ones."),
        (kept, f"That drops rows: {rows} rows went in, {sum(map(len, kept))} came out."),
        (dealt, "That deals the rows out like cards; the rows of a chunk are neighbours."),
        (list(batch.split(devices)), "That takes the number of pieces for the size of a piece."),
        ([len(chunk) for chunk in right], "Those are the sizes; return the chunks themselves."),
        ([c.flip(0) for c in right], "The rows of each chunk are in the wrong order."),
        (right[::-1], "The chunks are in the wrong order: the first device gets the first rows."),
    )
    given = f"a batch of shape {tuple(batch.shape)} and {devices} devices"
    hint = f"A full chunk has ceil({rows} / {devices}) = {-(-rows // devices)} rows."
    return Case(given, (batch, devices), right, known, hint)


def check_scatter_nest(attempt: Callable[[Any, int], Sequence[Any]]) -> Verdict:
    """Check `my_scatter_nest(inputs, num_devices)`: tensors cut, nests rebuilt, the rest repeated.

    Args:
        attempt: Takes a nest and a number of devices, returns a list of nests.
    """
    rows = torch.arange(4)
    cases = [
        nest_case({"pixels": rows, "labels": rows * 10}, 2),
        nest_case([rows, "train"], 2),
        nest_case((rows, {"extra": [rows * 10, 0.5], "mask": None}), 2),
        nest_case({"pixels": torch.arange(10).reshape(5, 2), "name": "train"}, 4),
        nest_case({"rate": 0.1, "steps": (1, 2)}, 3),
        nest_case({"pixels": rows, "extra": []}, 2),
    ]
    where = '"A dictionary goes in: what does each device get?"'
    return check_cases(_listed(attempt), cases, where=where)


def check_gather(attempt: Callable[[Sequence[dict[str, Tensor]]], dict[str, Tensor]]) -> Verdict:
    """Check `my_gather(outputs)`, which joins one dict of tensors per device into one dict.

    Args:
        attempt: Takes a list of dicts with the same keys, returns one dict.
    """
    where = '"What does gather make of three losses?"'
    one = {"loss": torch.tensor(0.5)}, {"loss": torch.tensor(0.25)}
    rows = {"logits": torch.tensor([[1.0, 2.0]])}, {"logits": torch.tensor([[3.0, 4.0]])}
    both = [
        {"logits": torch.full((n, 2), float(n)), "loss": torch.tensor(float(n))} for n in (3, 3, 1)
    ]
    cases = [
        _gather_case("two dicts with rows to join", list(rows)),
        _gather_case("two dicts with a loss of 0 dimensions each", list(one)),
        _gather_case("three dicts with logits and a loss", both),
    ]
    verdict = check_cases(attempt, cases, where=where)
    tracked = [
        {
            "logits": torch.ones(1, 2, requires_grad=True),
            "loss": torch.tensor(0.5, requires_grad=True),
        }
        for _ in range(2)
    ]
    if verdict.state != "correct":
        return verdict
    return (
        borrows(attempt, {"gather", "gather_nest"}, "join with torch.cat instead.", where)
        or _keeps_gradient(attempt, (tracked,), where)
        or verdict
    )


def _gather_case(given: str, outputs: list[dict[str, Tensor]]) -> Case:
    def joined(join: Callable[[list[Tensor]], Any]) -> dict[str, Any]:
        return {key: join([output[key] for output in outputs]) for key in outputs[0]}

    def cat(tensors: list[Tensor]) -> Tensor:
        return torch.cat([t.reshape(1) if t.dim() == 0 else t for t in tensors])

    same_shape = all(len({o[key].shape for o in outputs}) == 1 for key in outputs[0])
    still_lists = "The fields are still lists: one tensor per field should come out."
    known = [
        (outputs[0], "That is the first device's output alone."),
        (outputs[-1], "That is the last device's output alone: it replaced the others."),
        (joined(list), still_lists),
        (joined(lambda ts: [t.tolist() for t in ts]), still_lists),
        (joined(lambda ts: sum(t.sum() for t in ts)), "gather joins; it does not add up."),
        (
            joined(lambda ts: cat(ts[::-1])),
            "The devices are in the wrong order.",
        ),
        (joined(lambda ts: cat(ts[:-1])), "The last device's output is missing."),
        (joined(lambda ts: cat(ts[1:])), "The first device's output is missing."),
        (joined(lambda ts: cat(ts).flatten()), "The rows are no longer rows: that is flattened."),
    ]
    if same_shape:
        if outputs[0][next(iter(outputs[0]))].dim() > 1:
            side_by_side = joined(lambda ts: torch.cat(ts, dim=-1))
            known.append((side_by_side, "That joins columns; rows are dimension 0."))
        known.append((joined(torch.stack), "stack adds a dimension; the rows belong end to end."))
        known.append((joined(sum), "gather joins; it does not add up."))
        known.append((joined(lambda ts: sum(ts) / len(ts)), "gather joins; it does not average."))
    right = joined(cat)
    hint = "Take the keys from the first dict: another model returns others."
    if any(tensor.dim() == 0 for tensor in outputs[0].values()):
        hint = f"A loss of 0 dimensions has none to join along: give it one first. {hint}"
    return Case(given, (outputs,), right, tuple(known), hint)


def check_mean(attempt: Callable[[Tensor, Tensor], float | Tensor]) -> Verdict:
    """Check `my_mean(chunk_means, chunk_sizes)`, the mean over all rows.

    Args:
        attempt: Takes the mean of each chunk and its number of rows, a tensor each, returns one
            number.
    """
    chunked = [([2.0, 5.0, 7.0], [3, 3, 1]), ([0.5, 9.0], [4, 1]), ([1.0, 3.0], [2, 2])]
    cases = [_mean_case(means, sizes) for means, sizes in chunked]
    return check_cases(attempt, cases, where='"Is the mean of the means the mean?"')


def _mean_case(means: list[float], sizes: list[int]) -> Case:
    rows, total = sum(sizes), sum(mean * size for mean, size in zip(means, sizes, strict=True))
    all_but_last = (total - means[-1] * sizes[-1]) / (rows - sizes[-1])
    known = (
        (sum(means) / len(means), "That is the mean of the means: a short chunk counts too much."),
        (all_but_last, "That leaves the last chunk out: its rows count too."),
        (total, "That is the sum over all rows; divide it by the number of rows."),
        (total / len(means), "Divide by the number of rows, not by the number of chunks."),
        (sum(means) / rows, "Each mean stands for several rows: weight it by its chunk's size."),
    )
    right = total / rows
    given = f"means {means} of chunks of {sizes} rows"
    return Case(given, (torch.tensor(means), torch.tensor(sizes)), right, known)
