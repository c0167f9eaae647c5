"""Ways to silence a head of attention: the right one, and those that people try."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mpcourse.checks.verdict import same, short
from mpcourse.transformer.decoder import Decoder
from mpcourse.transformer.learning import next_token_loss


def wrong_loss(result: float, right: float, model: Decoder, given: tuple) -> list[str]:
    """What a loss shows that is not the right one, in words.

    Args:
        result: The attempt's loss.
        right: The loss without the head.
        model: With all heads.
        given: Inputs, targets, block and head.
    """
    inputs, targets, block, head = given
    with torch.no_grad():
        whole = next_token_loss(model(inputs), targets).item()
    known = (
        (whole, "That is the loss with all heads."),
        (right - whole, "That is the difference; asked is the loss itself."),
        (loss_without(*(model, *given, _rows)), "Rows of `output` are what comes out, mixed from "
         "all heads; a head's values go in, by columns."),
        (loss_without(*(model, *given, _queries)), "Without a query a head looks everywhere "
         "alike, and still says what it finds. Silence what it says."),
        (loss_without(model, inputs, targets, 1 - block, head, columns), "That is the other "
         "block."),
        (loss_without(model, inputs, targets, block, 2 - head, columns), "That is another head: "
         "head h has the columns from h * head_width on."),
        (loss_without(*(model, *given, _all_heads)), "The whole attention of the block is "
         "silent, not one head."),
    )  # fmt: skip
    meant = [words for wrong, words in known if same(result, wrong)]
    hint = "Set the head's columns of `attention.output.weight` to 0, and put them back after."
    return [f"expected {short(right)}", f"got {short(result)}", *(meant or [hint])[:1]]


def loss_without(
    model: Decoder,
    inputs: Tensor,
    targets: Tensor,
    block: int,
    head: int,
    silence: Callable[[nn.Module, slice], None],
) -> float:
    """The loss of a copy of the model in which `silence` has changed the attention of a block."""
    quiet = copy.deepcopy(model)
    attention = quiet.blocks[block].attention
    with torch.no_grad():
        silence(attention, slice(head * attention.head_width, (head + 1) * attention.head_width))
        return next_token_loss(quiet(inputs), targets).item()


def columns(attention: nn.Module, part: slice) -> None:
    """Silence a head as it is meant: what it says enters the output by its columns."""
    attention.output.weight[:, part] = 0


def _rows(attention: nn.Module, part: slice) -> None:
    attention.output.weight[part] = 0


def _queries(attention: nn.Module, part: slice) -> None:
    attention.query.weight[part] = 0
    attention.query.bias[part] = 0


def _all_heads(attention: nn.Module, part: slice) -> None:
    attention.output.weight[:] = 0
