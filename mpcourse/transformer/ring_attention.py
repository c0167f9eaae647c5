"""Attention whose tokens lie on n ranks: keys and values go round in a ring.

Page `long_sequences`. A rank holds T / n of a sequence, no whole keys, and the scores of one tile.
Sources: Liu et al. 2023, arXiv:2310.01889 (the ring); Milakov and Gimelshein 2018,
arXiv:1805.02867 (the merge); Dao et al. 2022, arXiv:2205.14135 (scores computed again); the order
that balances a causal ring, Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd import Function
from torch.distributed import ProcessGroup

from mpcourse.transformer.tensor_parallel_functions import rank_of, size_of

Tile = tuple[slice, slice, Tensor | None]  # of the queries, of the keys, and what is hidden


def own_places(tokens: int, group: ProcessGroup | None = None, *, zigzag: bool = False) -> Tensor:
    """Where in the whole sequence this rank's tokens stand, counted from 0.

    Args:
        tokens: Of the whole sequence; n divides them, or 2 n with `zigzag`.
        group: The n ranks; None is all of them.
        zigzag: Of 2 n equal pieces rank r has number r and number 2 n - 1 - r; else one piece.

    Raises:
        ValueError: The tokens cannot be cut into equal pieces.
    """
    return _places(tokens, size_of(group), zigzag)[rank_of(group)]


def _places(tokens: int, ranks: int, zigzag: bool) -> list[Tensor]:
    pieces = 2 * ranks if zigzag else ranks
    if tokens < pieces or tokens % pieces:
        order = " in zigzag order" if zigzag else ""
        raise ValueError(f"{ranks} ranks{order} cut {pieces} equal pieces; got {tokens} tokens")
    cut = torch.arange(tokens).chunk(pieces)
    return [torch.cat([cut[r], cut[-1 - r]]) if zigzag else cut[r] for r in range(ranks)]


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: ProcessGroup | None = None,
    *,
    causal: bool = True,
    zigzag: bool = False,
    tile: int = 256,
) -> Tensor:
    """What each token collects from all ranks' tokens; keys and values go round in a ring.

    All ranks call it with equal shapes; one rank alone is blockwise attention. The backward makes
    the scores again; gradients of keys and values go round with their block. Of bfloat16 and
    float16 the tiles are computed, merged and their gradients added up in float32.

    Args:
        query: (N, heads, T / n, c), this rank's tokens; on the CPU, or where the group sends from.
        key: (N, key heads, T / n, c); each head of keys serves as many heads of queries.
        value: As `key`.
        group: The n ranks; None is all of them.
        causal: Whether a token sees itself and those before it, or all.
        zigzag: Whether the tokens are those of `own_places(…, zigzag=True)`.
        tile: Tokens whose scores are held at once, with as many others.

    Returns:
        (N, heads, T / n, c).

    Raises:
        ValueError: The shapes do not fit, or the tokens make no zigzag. Nothing has been sent.
    """
    check_shapes(query, key, value)
    if tile < 1:
        raise ValueError(f"tile is {tile}; it has to be at least 1")
    places = _places(size_of(group) * query.shape[-2], size_of(group), zigzag)
    grouped = query.unflatten(1, (key.shape[1], -1))  # (N, key heads, queries of each, T / n, c)
    found = _Ring.apply(grouped, key.unsqueeze(2), value.unsqueeze(2), group, places, causal, tile)
    return found.flatten(1, 2)


def check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse what is no query, key and value of one sequence."""
    batch, heads, tokens, columns = query.shape
    wanted = (batch, key.shape[1], tokens, columns)
    if key.shape != wanted or value.shape != wanted or heads % max(key.shape[1], 1):
        found = ", ".join(str(tuple(each.shape)) for each in (query, key, value))
        wanted = "query (N, heads, T / n, c), key and value (N, key heads, T / n, c), of which key "
        raise ValueError(f"{wanted}heads divide heads; got {found}")


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """One out of two over other keys: outputs (..., T, c), log-sums of exponentials (..., T, 1)."""
    total = torch.logaddexp(first[1], second[1])
    weights = [(log_sum - total).exp() for _, log_sum in (first, second)]
    return weights[0] * first[0] + weights[1] * second[0], total


class _Ring(Function):
    """Queries stay; keys and values visit all ranks, and come home with their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        group: ProcessGroup | None,
        places: Sequence[Tensor],
        causal: bool,
        tile: int,
    ) -> Tensor:
        ranks, rank = size_of(group), rank_of(group)
        wide = _wide(query)
        output = torch.zeros_like(query, dtype=wide)
        log_sum = query.new_full((*query.shape[:-1], 1), float("-inf"), dtype=wide)
        held = torch.stack([key, value])
        for step in range(ranks):
            arriving = _pass_on(held, group) if step < ranks - 1 else None
            for rows, columns, ahead in _tiles(places, rank, rank - step, causal, tile):
                before = output[..., rows, :], log_sum[..., rows, :]
                block = held[..., columns, :].to(wide)
                found = _attend(query[..., rows, :].to(wide), *block, ahead)
                output[..., rows, :], log_sum[..., rows, :] = merge(before, found)
            held = arriving() if arriving else held
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, log_sum)
        ctx.given = group, places, causal, tile
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sum = ctx.saved_tensors
        group, places, causal, tile = ctx.given
        ranks, rank = size_of(group), rank_of(group)
        wide = _wide(query)
        of_query = torch.zeros_like(query, dtype=wide)
        inner = (gradient.to(wide) * output).sum(-1, keepdim=True)
        held, coming = torch.stack([key, value]), None
        for step in range(ranks):
            arriving = _pass_on(held, group) if step < ranks - 1 else None
            of_held = torch.zeros_like(held, dtype=wide)
            for rows, columns, ahead in _tiles(places, rank, rank - step, causal, tile):
                own = [each[..., rows, :].to(wide) for each in (query, gradient, log_sum, inner)]
                parts = _attend_backward(*own, *held[..., columns, :].to(wide), ahead)
                of_query[..., rows, :] += parts[0]
                of_held[0][..., columns, :] += parts[1]
                of_held[1][..., columns, :] += parts[2]
            if coming:  # what the ranks before have found for the block that is here
                of_held += coming()
            coming = _pass_on(of_held, group, tag=1)
            held = arriving() if arriving else held
        return of_query.to(query.dtype), *coming().to(key.dtype), None, None, None, None


def _wide(tensor: Tensor) -> torch.dtype:
    """What scores, sums and gradients are counted in: bfloat16 would round at every merge."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _tiles(
    places: Sequence[Tensor], rank: int, other: int, causal: bool, tile: int
) -> Iterator[Tile]:
    """The tiles that a rank computes with the block of another; one all hidden is left out."""
    mine, theirs = places[rank], places[other % len(places)]
    for top in range(0, len(mine), tile):
        rows = slice(top, top + tile)
        for left in range(0, len(theirs), tile):
            columns = slice(left, left + tile)
            if not causal:
                yield rows, columns, None
            elif theirs[columns].min() <= mine[rows].max():
                ahead = theirs[columns] > mine[rows].unsqueeze(1)
                yield rows, columns, ahead if ahead.any() else None


def _scores(query: Tensor, key: Tensor, ahead: Tensor | None) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if ahead is not None:  # not -inf, nan in a row that sees nothing here: this weighs 0 if merged
        scores.masked_fill_(ahead.to(scores.device), torch.finfo(scores.dtype).min)
    return scores


def _attend(
    query: Tensor, key: Tensor, value: Tensor, ahead: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key, ahead)
    log_sum = scores.logsumexp(-1, keepdim=True)
    return scores.sub_(log_sum).exp_() @ value, log_sum


def _attend_backward(
    query: Tensor,
    gradient: Tensor,
    log_sum: Tensor,
    inner: Tensor,
    key: Tensor,
    value: Tensor,
    ahead: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key, value from one tile; `inner`: gradient times output, summed."""
    weights = _scores(query, key, ahead).sub_(log_sum).exp_()
    of_value = (weights.mT @ gradient).sum_to_size(value.shape)
    of_scores = weights.mul_((gradient @ value.mT).sub_(inner)).mul_(query.shape[-1] ** -0.5)
    return of_scores @ key, (of_scores.mT @ query).sum_to_size(key.shape), of_value


def _pass_on(tensor: Tensor, group: ProcessGroup | None, tag: int = 0) -> Callable[[], Tensor]:
    """Send to the next rank; what comes from the one before is what the result returns."""
    ranks, rank = size_of(group), rank_of(group)
    if ranks == 1:
        return lambda: tensor
    arriving = torch.empty_like(tensor)
    ways = [
        lambda: distributed.isend(tensor, group=group, tag=tag, group_dst=(rank + 1) % ranks),
        lambda: distributed.irecv(arriving, group=group, tag=tag, group_src=(rank - 1) % ranks),
    ]
    # neighbours take turns: where a send waits for its receive, as NCCL's do, none waits for ever
    waiting = [way() for way in (ways if rank % 2 == 0 else reversed(ways))]

    def arrived() -> Tensor:
        for each in waiting:
            each.wait()
        return arriving

    return arrived
