"""A vocabulary cut over ranks: embedding and loss without a whole table or whole logits anywhere.

Page `cut_inside_a_layer`. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from mpcourse.transformer.parallel_layers import own_part
from mpcourse.transformer.tensor_parallel_functions import reduce_from_ranks, size_of


class VocabParallelEmbedding(nn.Embedding):
    """An embedding of which each of n ranks holds V / n rows: tokens (..., T) -> (..., T, width).

    `num_embeddings` is V, a multiple of n; with `sequence` each rank gets its tokens only,
    (..., T / n, width). All ranks have to draw the same random numbers here (one seed): then the
    parts make one table.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        group: ProcessGroup | None = None,
        *,
        sequence: bool = False,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim)
        self.group, self.sequence, self.vocabulary = group, sequence, num_embeddings
        self._take(self)

    def _take(self, whole: nn.Embedding) -> None:
        part = own_part(self.vocabulary, "tokens of the vocabulary", self.group)
        self.first, self.num_embeddings = part.start, part.stop - part.start
        self.weight = nn.Parameter(whole.weight.detach()[part].clone())

    @classmethod
    def of(
        cls, whole: nn.Embedding, group: ProcessGroup | None = None, *, sequence: bool = False
    ) -> "VocabParallelEmbedding":
        """This rank's rows of a table that is the same on all ranks; it stays as it is."""
        cut = cls(whole.num_embeddings, whole.embedding_dim, group, sequence=sequence)
        cut._take(whole)
        return cut

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up the tokens that are here, take zero for the others, and sum over the ranks."""
        _check_tokens(tokens, self.vocabulary)
        here, row = _own(tokens, self.first, self.num_embeddings)
        found = super().forward(row) * here.unsqueeze(-1)
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
    highest = logits.detach().amax(dim=-1)
    if size_of(group) > 1:
        distributed.all_reduce(highest, distributed.ReduceOp.MAX, group)
    shifted = logits - highest.unsqueeze(-1)  # no exponential overflows, on any rank
    part = own_part(vocabulary, "tokens of the vocabulary", group)
    here, column = _own(targets, part.start, own)
    right = shifted.gather(-1, column.unsqueeze(-1)).squeeze(-1).where(here, 0.0)
    total, right = reduce_from_ranks(torch.stack([shifted.exp().sum(dim=-1), right]), group)
    return (total.log() - right).mean()


def _own(tokens: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Which tokens are among the `count` of this rank, and their rows; row 0 for the others."""
    row = tokens - first
    here = (row >= 0) & (row < count)
    return here, row.where(here, 0)


def _check_tokens(tokens: Tensor, vocabulary: int) -> None:
    if tokens.numel() and not 0 <= tokens.min() <= tokens.max() < vocabulary:
        found = f"{tokens.min().item()} to {tokens.max().item()}"
        raise IndexError(f"tokens are numbers from 0 to {vocabulary - 1}; got {found}")
