"""A decoder in one piece, what it finds in a step, and whether its parts find the same."""

import collections
import copy

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from mpcourse.transformer import (
    Counted,
    Decoder,
    Message,
    block_messages,
    cut_inside,
    own_part,
    sum_whole_gradients,
    vocab_parallel_cross_entropy,
)
from mpcourse.transformer.tensor_parallel_functions import size_of

V, WIDTH, HEADS, LAYERS, T, N = 24, 16, 8, 2, 8, 8


class Place:
    """A place among ranks that send nothing: whoever sends fails."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = lambda: rank, lambda: size


def random_decoder(**options) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(V, WIDTH, HEADS, LAYERS, T, **options).double()
    for parameter in model.parameters():  # what starts at 0 or 1 hides a slip
        nn.init.normal_(parameter, std=0.3)
    return model


def uncut_loss(model: Decoder, tokens: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def gradients_as_weights(model: Decoder) -> Decoder:
    """Cut like the model, these weights are the parts' gradients."""
    copied = copy.deepcopy(model)
    for parameter, original in zip(copied.parameters(), model.parameters(), strict=True):
        parameter.data = torch.zeros_like(original) if original.grad is None else original.grad
    return copied


def check_gradients(part: nn.Module, gradients: nn.Module) -> None:
    wanted = gradients.parameters()
    for (name, parameter), right in zip(part.named_parameters(), wanted, strict=True):
        right = right.detach() if parameter.requires_grad else None
        torch.testing.assert_close(parameter.grad, right, rtol=0, atol=1e-12, msg=name)


def step_messages(
    tokens: int, width: int, layers: int, itemsize: int, *, sequence: bool
) -> list[Message]:
    """The messages of a whole decoder's step: embedding, blocks, head, and the loss.

    The order is not that of the run; the sum of the whole parameters' gradients is not among them.
    """
    blocks = layers * block_messages(tokens, width, itemsize, sequence=sequence)
    # out of the embedding and into the head: half a block's ways
    ends = block_messages(tokens, width, itemsize, sequence=sequence)[: 4 if sequence else 2]
    highest, sums = (Message("all-reduce", n * tokens * itemsize) for n in (1, 2))
    return [*blocks, *ends, highest, sums]


def check_cut_step(
    model: Decoder, tokens: Tensor, targets: Tensor, group: ProcessGroup | None, sequence: bool
) -> None:
    """Logits, loss and gradients are those the model has had; what is sent was predicted."""
    cut, ranks = cut_inside(model, group, sequence=sequence), size_of(group)
    with Counted() as counted:
        logits = cut(tokens)
        loss = vocab_parallel_cross_entropy(logits, targets, group)
        loss.backward()
    if sequence:
        sum_whole_gradients(cut, group)
    whole = model(tokens)[..., own_part(V, "tokens", group)]
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss, uncut_loss(model, tokens, targets), rtol=0, atol=1e-12)
    check_gradients(cut, cut_inside(gradients_as_weights(model), group, sequence=sequence))
    predicted = step_messages(tokens.numel(), WIDTH, LAYERS, 8, sequence=sequence)
    predicted = predicted if ranks > 1 else []
    assert collections.Counter(counted.messages) == collections.Counter(predicted)
    assert counted.sent(ranks) == sum(message.sent(ranks) for message in predicted)
