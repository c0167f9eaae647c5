"""A decoder cut inside its layers: heads, MLP columns and vocabulary over ranks.

Page `cut_inside_a_layer`.
"""

import copy
import functools

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from mpcourse.transformer.decoder import Attention, Decoder, Embedding
from mpcourse.transformer.parallel_layers import (
    ColumnParallelLinear,
    ParallelDropout,
    RowParallelLinear,
    check_plain,
    has_hooks,
    own_part,
)
from mpcourse.transformer.parallel_vocabulary import VocabParallelEmbedding, check_table
from mpcourse.transformer.tensor_parallel_functions import copy_to_ranks, sum_in_one_message


def cut_inside(
    model: Decoder, group: ProcessGroup | None = None, *, sequence: bool = False, seed: int = 0
) -> Decoder:
    """This rank's part of a decoder: whole heads, columns of the MLP, rows of the vocabulary.

    The result takes the whole tokens (N, T) on every rank and gives this rank's logits,
    (N, T, V / n); `vocab_parallel_cross_entropy` makes the loss of them. Between the blocks each
    rank holds (N, T, width), or (N, T / n, width) with `sequence`. `clip_grad_norm_` would take the
    norm of this rank's part alone, and scale each rank by another number: do not call it.

    Args:
        model: The same on all ranks; it stays as it is. What is frozen or in evaluation mode is so
            in the part.
        group: The n ranks; None is all of them.
        sequence: Whether norms, dropout and residuals hold T / n tokens per rank. Then call
            `sum_whole_gradients` between backward and optimizer step.
        seed: Of the dropout, the same on all ranks.

    Raises:
        ValueError: n does not divide the heads, or the vocabulary; or a cut module has hooks, a
            class or options of its own, or shares a tensor (the ends may).
    """
    _check_parameters(model)
    check_plain(model.embedding, Embedding)
    check_table(model.embedding.positions)
    for block in model.blocks:
        check_plain(block.attention, Attention)
        heads = block.attention.query.out_features // block.attention.head_width
        own_part(heads, "heads", group)
    cut = copy.deepcopy(model)
    cut.embedding = _CutEmbedding(model.embedding, group, sequence)
    column = functools.partial(ColumnParallelLinear.of, group=group, sequence=sequence)
    row = functools.partial(RowParallelLinear.of, group=group, sequence=sequence)

    def dropout(whole: nn.Dropout, seed: int) -> ParallelDropout:
        check_plain(whole, nn.Dropout)
        return ParallelDropout(whole.p, group, sequence=sequence, seed=seed)

    for number, block in enumerate(cut.blocks):
        block.attention = _CutAttention(block.attention, group, sequence)
        block.mlp.up, block.mlp.down = column(block.mlp.up), row(block.mlp.down)
        own = 2 * (seed * len(cut.blocks) + number)
        block.dropout_1 = dropout(block.dropout_1, own)
        block.dropout_2 = dropout(block.dropout_2, own + 1)
    cut.head.output = column(model.head.output)
    if model.head.output.weight is model.embedding.tokens.weight:
        cut.head.output.weight = cut.embedding.tokens.weight  # both hold the same tokens' rows
    for name, module in cut.named_modules():
        module.training = model.get_submodule(name).training
    return cut


def _check_parameters(model: Decoder) -> None:
    """Refuse what the parts would not have: hooks, or one tensor in two places (the ends may)."""
    hooked = [name for name, parameter in model.named_parameters() if has_hooks(parameter)]
    if hooked:
        raise ValueError(f"{hooked[0]} has gradient hooks, and its part would not: remove them")
    once = {name for name, _ in model.named_parameters()} | {"head.output.weight"}
    twice = [n for n, _ in model.named_parameters(remove_duplicate=False) if n not in once]
    if twice:
        raise ValueError(f"{twice[0]} is used under another name, too; only tied ends can be cut")


class _CutAttention(Attention):
    """Attention with the heads of this rank; query, key and value share one f."""

    def __init__(self, whole: Attention, group: ProcessGroup | None, sequence: bool) -> None:
        nn.Module.__init__(self)
        self.head_width, self.group, self.sequence = whole.head_width, group, sequence
        for name in ("query", "key", "value"):
            part = ColumnParallelLinear.of(getattr(whole, name), group, enters=False)
            setattr(self, name, part)
        self.output = RowParallelLinear.of(whole.output, group, sequence=sequence)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(copy_to_ranks(x, self.group, sequence=self.sequence))


class _CutEmbedding(Embedding):
    """Rows of the table of tokens; positions whole, added to the tokens that are here."""

    def __init__(self, whole: Embedding, group: ProcessGroup | None, sequence: bool) -> None:
        nn.Module.__init__(self)
        self.group, self.sequence = group, sequence
        self.tokens = VocabParallelEmbedding.of(whole.tokens, group, sequence=sequence)
        self.positions = copy.deepcopy(whole.positions)

    def places(self, tokens: Tensor, start: int) -> Tensor:
        places = super().places(tokens, start)
        return places[own_part(len(places), "tokens", self.group)] if self.sequence else places


def whole_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that every rank holds whole: norms, positions, biases of row-cut layers."""
    cut: set[int] = set()
    for module in model.modules():
        if isinstance(module, ColumnParallelLinear | VocabParallelEmbedding):
            cut |= {id(parameter) for parameter in module.parameters(recurse=False)}
        elif isinstance(module, RowParallelLinear):
            cut.add(id(module.weight))
    return [parameter for parameter in model.parameters() if id(parameter) not in cut]


@torch.no_grad()
def sum_whole_gradients(model: nn.Module, group: ProcessGroup | None = None) -> None:
    """With cut tokens, sum over the ranks the gradients of the parameters that all hold whole.

    Each rank has seen its own tokens only. One message for all; call it once between the last
    backward and the optimizer step.

    Args:
        model: From `cut_inside(…, sequence=True)` or `cut_tokens`.
        group: The ranks; None is all of them.

    Raises:
        ValueError: The tokens are not cut: these gradients are whole already.
    """
    if not any(getattr(module, "sequence", False) for module in model.modules()):
        raise ValueError("without cut_inside(…, sequence=True) these gradients are whole already")
    gradients = [p.grad for p in whole_parameters(model) if p.grad is not None]
    sum_in_one_message(gradients, group)
