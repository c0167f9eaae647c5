"""A vocabulary cut over ranks: embedding and loss without a whole table or whole logits anywhere.

Page `cut_inside_a_layer`. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from mpcourse.transformer.parallel_layers import (
    check_plain,
    from_rank_0,
    own_part,
    refuse_reset,
    taken,
)
from mpcourse.transformer.tensor_parallel_functions import reduce_from_ranks, size_of


class VocabParallelEmbedding(nn.Embedding):
    """An embedding of which each of n ranks holds V / n rows: tokens (..., T) -> (..., T, width).

    `num_embeddings` is V, a multiple of n; with `sequence` each rank gets its tokens only,
    (..., T / n, width). The first rank draws the table and sends it, so it has to be where the
    group sends from (for NCCL on a GPU).
    """

    reset_parameters = refuse_reset

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        group: ProcessGroup | None = None,
        *,
        sequence: bool = False,
    ) -> None:
        own_part(num_embeddings, "tokens of the vocabulary", group)
        whole = from_rank_0(nn.Embedding(num_embeddings, embedding_dim), group)
        self._take(whole, group, sequence)

    @classmethod
    def of(
        cls, whole: nn.Embedding, group: ProcessGroup | None = None, *, sequence: bool = False
    ) -> "VocabParallelEmbedding":
        """This rank's rows of a table that is the same on all ranks; it stays as it is."""
        cut = cls.__new__(cls)
        cut._take(whole, group, sequence)
        return cut

    def _take(self, whole: nn.Embedding, group: ProcessGroup | None, sequence: bool) -> None:
        check_table(whole)
        part = own_part(len(whole.weight), "tokens of the vocabulary", group)
        rows, padding = taken(whole.weight, part), whole.padding_idx
        if padding is not None:
            padding = padding - part.start if part.start <= padding < part.stop else None
        super().__init__(*rows.shape, padding_idx=padding, _weight=rows)
        self.weight.requires_grad_(whole.weight.requires_grad)
        self.group, self.sequence, self.training = group, sequence, whole.training
        self.vocabulary, self.first = len(whole.weight), part.start

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up the tokens that are here, take zero for the others, and sum over the ranks."""
        _check_tokens(tokens, self.vocabulary)
        here, row = _own(tokens, self.first, self.num_embeddings)
        found = super().forward(row).where(here.unsqueeze(-1), 0.0)
        return reduce_from_ranks(found, self.group, sequence=self.sequence)


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, group: ProcessGroup | None = None
) -> Tensor:
    """The mean cross-entropy from logits whose vocabulary is cut: three numbers per token are sent.

    Args:
        logits: This rank's scores (..., V / n), of the tokens of rank 0 first.
        targets: The right tokens (...), from 0 to V - 1; the same on all ranks.
        group: The ranks; None is all of them.

    Returns:
        A 0-d tensor, the same on all ranks; the gradient of each rank's logits is that of its
        part of the whole logits.

    Raises:
        ValueError: The shapes do not fit.
        IndexError: A target is not in the vocabulary.
    """
    own = logits.shape[-1]
    if logits.shape[:-1] != targets.shape:
        shapes = f"{tuple(logits.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"logits (..., V / n) need targets (...); got {shapes}")
    vocabulary = own * size_of(group)
    _check_tokens(targets, vocabulary)
    if torch.is_autocast_enabled(logits.device.type):  # there torch's own loss is float32, too
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    highest = logits.detach().amax(dim=-1)
    if size_of(group) > 1:
        distributed.all_reduce(highest, distributed.ReduceOp.MAX, group)
    shifted = logits - highest.unsqueeze(-1)  # no exponential overflows, on any rank
    part = own_part(vocabulary, "tokens of the vocabulary", group)
    here, column = _own(targets, part.start, own)
    right = shifted.gather(-1, column.unsqueeze(-1)).squeeze(-1).where(here, 0.0)
    total, right = reduce_from_ranks(torch.stack([shifted.exp().sum(dim=-1), right]), group)
    return (total.log() - right).mean()


def check_table(whole: nn.Embedding) -> None:
    """Refuse options that act on the rows of all tokens together, wherever these are."""
    check_plain(whole, nn.Embedding)
    for name in ("max_norm", "scale_grad_by_freq", "sparse"):
        value = getattr(whole, name)
        if value is not None and value is not False:
            raise ValueError(f"an embedding with {name}={value} cannot be cut over ranks")


def _own(tokens: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Which tokens are among the `count` of this rank, and their rows; row 0 for the others."""
    row = tokens - first
    here = (row >= 0) & (row < count)
    return here, row.where(here, 0)


def _check_tokens(tokens: Tensor, vocabulary: int) -> None:
    if not ((tokens >= 0) & (tokens < vocabulary)).all():  # the one wait for a GPU
        found = f"{tokens.min().item()} to {tokens.max().item()}"
        raise IndexError(f"tokens are numbers from 0 to {vocabulary - 1}; got {found}")
