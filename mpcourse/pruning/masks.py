"""Masks: which weights stay (True) and which become zero (False), from scores.

Masks are a dictionary like scores, of the same shapes. Making one changes no model.
"""

from collections.abc import Mapping
from numbers import Real

import torch
from torch import Tensor

Masks = dict[str, Tensor]


def keep_largest(scores: Tensor, sparsity: float) -> Tensor:
    """False at the round(sparsity * number) lowest scores, as in torch; of equals the first go."""
    order = scores.flatten().argsort(stable=True)
    mask = torch.ones_like(order, dtype=torch.bool)
    mask[order[: round(sparsity * len(order))]] = False
    return mask.view(scores.shape)


def layer_masks(scores: Mapping[str, Tensor], sparsity: float | Mapping[str, float]) -> Masks:
    """Prune the same share of every layer: each has a threshold of its own.

    Args:
        scores: Name of the layer -> scores.
        sparsity: The share that goes, 0 to 1, or one for each layer by name.

    Raises:
        ValueError: A sparsity outside 0 to 1, no scores, NaN among the scores.
    """
    shares = sparsity if isinstance(sparsity, Mapping) else dict.fromkeys(scores, sparsity)
    _check(scores, shares)
    return {name: keep_largest(score, shares[name]) for name, score in scores.items()}


def global_masks(
    scores: Mapping[str, Tensor], sparsity: float, within: Mapping[str, Tensor] | None = None
) -> Masks:
    """Prune the lowest scores of all layers together: one threshold for the whole model.

    Layers end up with different sparsities; at a high one a layer may lose everything, which
    `apply_masks` refuses.

    Args:
        scores: Name of the layer -> scores.
        sparsity: The share of all weights that goes, 0 to 1.
        within: Earlier masks: what they prune stays pruned, and counts.

    Raises:
        ValueError: A sparsity outside 0 to 1, no scores, NaN among the scores.
    """
    _check(scores, dict.fromkeys(scores, sparsity), within)
    earlier = {name: within[name].bool() for name in scores} if within else {}
    # a caller's own scores may be -inf too, so what is pruned already is cleared again below
    lowest = {name: scores[name].masked_fill(~mask, -torch.inf) for name, mask in earlier.items()}
    ranked = dict(scores) | lowest
    place = next(iter(ranked.values())).device
    together = torch.cat([score.flatten().to(place) for score in ranked.values()])
    parts = keep_largest(together, sparsity).split([score.numel() for score in ranked.values()])
    masks = {
        name: part.view(score.shape).to(score.device)
        for (name, score), part in zip(ranked.items(), parts, strict=True)
    }
    return masks | {name: masks[name] & mask for name, mask in earlier.items()}


def n_m_masks(scores: Mapping[str, Tensor], n: int = 2, m: int = 4) -> Masks:
    """Keep the n largest of every m consecutive inputs (2:4 is what GPUs have kernels for).

    Args:
        scores: Name of the layer -> scores of the shape of its weight; the inputs are dimension 1.
        n: How many stay of each group, 1 to m.
        m: The size of a group; it divides the number of inputs.

    Raises:
        ValueError: n or m out of range, inputs that m does not divide, no scores, NaN.

    Source: Mishra et al., 2021, arXiv:2104.08378.
    """
    if not 1 <= n <= m:
        raise ValueError(f"n of every m stay, with 1 <= n <= m; got n = {n} and m = {m}")
    _check(scores)
    masks = {}
    for name, score in scores.items():
        if score.dim() < 2 or score.shape[1] % m:
            inputs = score.shape[1] if score.dim() > 1 else 0
            raise ValueError(
                f"{name} has {inputs} inputs, which groups of {m} do not divide: "
                "leave the layer out of the scores"
            )
        rows = score.movedim(1, -1)
        groups = rows.reshape(-1, m)
        largest = groups.argsort(dim=1, descending=True, stable=True)[:, :n]
        mask = torch.zeros_like(groups, dtype=torch.bool).scatter(1, largest, True)
        masks[name] = mask.view(rows.shape).movedim(-1, 1)
    return masks


def sparsity_of(masks: Mapping[str, Tensor]) -> float:
    """The share of all entries of the masks that is pruned, 0 to 1."""
    kept = sum(int(mask.sum()) for mask in masks.values())
    return 1 - kept / sum(mask.numel() for mask in masks.values())


def _check(
    scores: Mapping[str, Tensor],
    shares: Mapping[str, float] | None = None,
    within: Mapping[str, Tensor] | None = None,
) -> None:
    if not scores:
        raise ValueError("scores is empty: it maps the name of each layer to its scores")
    for names, what in [(shares, "sparsity"), (within, "within")]:
        if names is not None and set(names) != set(scores):
            raise ValueError(f"{what} names {list(names)}, the scores name {list(scores)}")
    for share in (shares or {}).values():
        refuse_bad_share(share, "sparsity")
    for name, score in scores.items():
        if unknown := int(score.isnan().sum()):
            raise ValueError(f"{unknown} of the {score.numel()} scores of {name} are NaN")


def refuse_bad_share(share: float, what: str) -> None:
    """Raise a ValueError unless a number lies between 0 and 1."""
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share <= 1:
        raise ValueError(f"{what} is a number from 0 to 1; got {share!r}")
