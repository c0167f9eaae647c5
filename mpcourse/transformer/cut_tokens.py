"""A decoder whose tokens lie on n ranks (page `long_sequences`), or are traded for heads.

The trade is of page `context_parallelism`.

Sources: Jacobs et al. 2023, arXiv:2309.14509 (the trade); `ring_attention` has the others.
"""

import copy
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup

from mpcourse.transformer.decoder import Attention, Decoder, Embedding
from mpcourse.transformer.parallel_layers import check_plain, own_part
from mpcourse.transformer.ring_attention import check_shapes, own_places, ring_attention
from mpcourse.transformer.tensor_parallel_functions import size_of


class _Trade(Function):
    """Cut along one dimension, a piece for each rank; join what comes along another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None, cut: int, join: int) -> Tensor:
        ctx.given = group, join, cut
        pieces = torch.stack(x.chunk(size_of(group), dim=cut))
        received = torch.empty_like(pieces)
        distributed.all_to_all_single(received, pieces, group=group)
        return torch.cat([*received], dim=join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _Trade.apply(gradient, *ctx.given), None, None, None


def ulysses_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: ProcessGroup | None = None,
    *,
    causal: bool = True,
    tile: int = 256,
) -> Tensor:
    """As `ring_attention`, but by two all-to-alls: all tokens of some heads are on each rank.

    The tokens lie in plain order; n divides the heads, those of the keys too.

    Raises:
        ValueError: The shapes do not fit, or n does not divide the heads. Nothing has been sent.
    """
    check_shapes(query, key, value)
    for heads, what in ((query.shape[1], "heads"), (key.shape[1], "heads of keys")):
        own_part(heads, what, group)
    query, key, value = (_Trade.apply(each, group, 1, 2) for each in (query, key, value))
    found = ring_attention(query, key, value, _Alone(), causal=causal, tile=tile)
    return _Trade.apply(found, group, 2, 1)


class _Alone:
    """A group of one rank, which sends nothing."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


class _RingAttention(Attention):
    """The attention of a decoder, on this rank's tokens."""

    def __init__(self, whole: Attention, group: ProcessGroup | None, zigzag: bool) -> None:
        nn.Module.__init__(self)
        for name, child in copy.deepcopy(whole).named_children():
            self.add_module(name, child)
        self.head_width, self.group, self.zigzag = whole.head_width, group, zigzag
        self.sequence = True  # `sum_whole_gradients` has something to do

    def forward(self, x: Tensor) -> Tensor:
        return self.join(ring_attention(*self.project(x), self.group, zigzag=self.zigzag))


class _PlacedEmbedding(Embedding):
    """Tokens of this rank, at their places in the whole sequence."""

    def __init__(self, whole: Embedding, group: ProcessGroup | None, zigzag: bool) -> None:
        nn.Module.__init__(self)
        self.tokens, self.positions = copy.deepcopy(whole.tokens), copy.deepcopy(whole.positions)
        self.group, self.zigzag = group, zigzag

    def places(self, tokens: Tensor, start: int) -> Tensor:
        whole = size_of(self.group) * tokens.shape[1]
        if start + whole > self.positions.num_embeddings:
            raise ValueError(
                f"{start + whole} tokens; the context is {self.positions.num_embeddings}"
            )
        own = own_places(whole, self.group, zigzag=self.zigzag)
        return start + own.to(tokens.device)


def cut_tokens(
    model: Decoder, group: ProcessGroup | None = None, *, zigzag: bool = True
) -> Decoder:
    """A decoder that takes this rank's tokens (N, T / n) and gives their logits.

    All weights are whole on every rank. The loss is the mean over all ranks' tokens: each rank
    divides its sum by the number of all; then `sum_whole_gradients` between backward and optimizer.

    Args:
        model: The same on all ranks; it stays as it is. Its dropout draws on each rank for itself.
        group: The n ranks; None is all of them.
        zigzag: Which order `own_places` gives the tokens.

    Raises:
        ValueError: Embedding or attention is not the decoder's own.
    """
    check_plain(model.embedding, Embedding)
    for block in model.blocks:
        check_plain(block.attention, Attention)
    cut = copy.deepcopy(model)
    cut.embedding = _PlacedEmbedding(cut.embedding, group, zigzag)
    for block in cut.blocks:
        block.attention = _RingAttention(block.attention, group, zigzag)
    if model.head.output.weight is model.embedding.tokens.weight:
        cut.head.output.weight = cut.embedding.tokens.weight
    return cut
