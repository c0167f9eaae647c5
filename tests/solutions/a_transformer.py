"""Solutions of page `a_transformer`: what a token sees, a silent head, a cache, tied copies."""

import torch

from mpcourse.transformer import next_token_loss


def my_causal_weights(scores):
    """Hide what comes after before the softmax, so that what is left sums to 1.

    exp(-inf) is 0, so a hidden token takes no part. Zeros put in after the softmax would leave rows
    that sum to less than 1, and a hidden score of 0 would still weigh exp(0) = 1.
    """
    ahead = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, float("-inf")).softmax(dim=-1)


def my_leaky_weights(scores):
    """One diagonal further: each token sees the very token that it is asked to predict.

    The training loss becomes wonderful and the written text worthless, because the next token is
    not there yet when the model writes. A loss far below what others reach is a reason to search.
    """
    ahead = torch.ones_like(scores, dtype=torch.bool).triu(2)
    return scores.masked_fill(ahead, float("-inf")).softmax(dim=-1)


def my_cache_bytes(layers, width, heads, texts, tokens):
    """A key and a value of `width` numbers, in each block, for each token of each text.

    The heads share the width, so their number does not matter. Queries are not kept: only the new
    token asks.
    """
    return 2 * layers * width * texts * tokens * 4


def my_silent_loss(model, inputs, targets, block, head):
    """The head's values enter `output` by its own columns; zeros there leave nothing of it.

    Without its query it would look everywhere alike and go on talking. The weights are put back, so
    that the next head is judged on the whole model.
    """
    attention = model.blocks[block].attention
    part = slice(head * attention.head_width, (head + 1) * attention.head_width)
    with torch.no_grad():
        kept = attention.output.weight[:, part].clone()
        attention.output.weight[:, part] = 0
        loss = next_token_loss(model(inputs), targets).item()
        attention.output.weight[:, part] = kept
    return loss


@torch.no_grad()
def my_mend(first, last):
    """One tensor that is used twice gets the sum of both uses' gradients; so do its copies.

    The sum is made once, before either gradient changes. With the mean the copies would stay
    equal too, but their gradient is half of the tied tensor's.
    """
    total = first.grad + last.grad.to(first.device)
    first.grad.copy_(total)
    last.grad.copy_(total)
