"""Checks of page `a_transformer`: what a token sees, a silent head, a cache, two tied copies."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.attempted_heads import columns, loss_without, wrong_loss
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    same,
    short,
    try_out,
)
from mpcourse.transformer.decoder import Decoder


def check_causal(attempt: Callable[[Tensor], Tensor]) -> Verdict:
    """Check `my_causal_weights(scores)`: no token looks ahead, each row sums to 1.

    Args:
        attempt: Takes scores (T, T), row = who looks; returns weights of the same shape.
    """
    cases = [_causal_case(size, 0) for size in (3, 4, 1)]
    return check_cases(attempt, cases, where='"What may a token see?"')


def check_leak(attempt: Callable[[Tensor], Tensor]) -> Verdict:
    """Check `my_leaky_weights(scores)`: each token sees one place too far, the next token.

    Args:
        attempt: Takes scores (T, T); returns weights of the same shape.
    """
    cases = [_causal_case(size, 1) for size in (4, 5)]
    return check_cases(attempt, cases, where='"What may a token see?"')


def _causal_case(size: int, ahead: int) -> Case:
    """Scores of `size` tokens, each of which sees itself, all before it and `ahead` after it."""
    chance = torch.Generator().manual_seed(size)
    scores = torch.randn(size, size, generator=chance, dtype=torch.double)
    right = _seen(scores, ahead)
    known = [
        (scores.softmax(-1), "Nothing is hidden: the first token sees the last one."),
        (_seen(scores, 0), "No token sees what comes after it: this is right, and does not leak."),
        (_seen(scores, 1), "Each token sees the next one too: the first diagonal to hide is 1."),
        (_seen(scores, 2), "Each token sees two places ahead: one diagonal too far."),
        (_seen(scores, -1), "A token does not see itself: the first row has nothing left."),
        (
            _masked(scores, ahead).softmax(0),
            "The columns sum to 1, not the rows: take the softmax along -1.",
        ),
        (
            _seen(scores.T, ahead).T,
            "The columns sum to 1, not the rows: take the softmax along -1.",
        ),
        (scores.softmax(-1).tril(ahead), "Hidden after the softmax: a row no longer sums to 1."),
        (_before(scores), "The wrong half is hidden: a token sees what comes, not what was."),
        (
            scores.tril(ahead).softmax(-1),
            "A hidden score of 0 is a score like others: exp(0) is 1. Which number has exp 0?",
        ),
    ]
    distinct = tuple((wrong, words) for wrong, words in known if not _alike(wrong, right))
    hint = "Put -inf where a token must not look, before the softmax along the last dimension."
    return Case(f"scores of {size} tokens", (scores,), right, distinct, hint, _alike)


def _seen(scores: Tensor, ahead: int) -> Tensor:
    return _masked(scores, ahead).softmax(-1)


def _masked(scores: Tensor, ahead: int) -> Tensor:
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(ahead + 1)
    return scores.masked_fill(hidden, -math.inf)


def _before(scores: Tensor) -> Tensor:
    hidden = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def _alike(result: Any, expected: Tensor) -> bool:
    """`same`, where nan is equal to nan: a row without anything to see. Lists of rows will do."""
    try:
        result = torch.as_tensor(result)
    except (TypeError, ValueError, RuntimeError):
        return False
    return same(result.nan_to_num(9.0), expected.nan_to_num(9.0))


def check_cache_bytes(attempt: Callable[[int, int, int, int, int], int]) -> Verdict:
    """Check `my_cache_bytes(layers, width, heads, texts, tokens)`: of a float32 cache.

    Args:
        attempt: Takes five counts, returns a whole number of bytes.
    """
    sizes = [(3, 10, 5, 7, 11), (4, 64, 4, 1, 48), (32, 4096, 32, 8, 2048), (1, 12, 3, 5, 1)]
    cases = [_cache_case(*size) for size in sizes]
    return check_cases(attempt, cases, where='"What does a cache cost?"')


def _cache_case(layers: int, width: int, heads: int, texts: int, tokens: int) -> Case:
    right = 2 * layers * width * texts * tokens * 4
    known = (
        (right // 2, "Half of it: keys and values are both kept."),
        (right // 4, "That counts numbers; a float32 has 4 bytes."),
        (right // layers, "That is one block's: each block has keys and values of its own."),
        (right * heads, "The heads share the width: each has width / heads columns."),
        (right // heads, "That is one head's: together the heads have the whole width."),
        (right // texts, "That is one text's: each has a past of its own."),
        (right * tokens, "The cache grows with the tokens, not with their square: no weights."),
        (right * 3 // 2, "Queries are not kept: only the new token asks."),
    )
    distinct = tuple(pair for pair in known if pair[0] != right)
    given = f"{layers} blocks, width {width}, {heads} heads, {texts} texts of {tokens} tokens"
    hint = "Each block keeps a key and a value of `width` numbers for every token of every text."
    return Case(given, (layers, width, heads, texts, tokens), right, distinct, hint)


Silencer = Callable[[Decoder, Tensor, Tensor, int, int], float | Tensor]


def check_silent_head(attempt: Silencer) -> Verdict:
    """Check `my_silent_loss(model, inputs, targets, block, head)`: a head says nothing.

    Args:
        attempt: Returns the loss without the head, and leaves the model as it was.
    """
    where = '"Which head does the work?"'
    if not callable(attempt):
        return no_function(attempt, where)
    for block, head in ((0, 0), (1, 2)):
        lines = _silent_trial(attempt, block, head)
        if lines is None:
            return not_attempted()
        if lines:
            return not_yet([f"Given block {block} and head {head} of 3:", *lines], where)
    return correct("The loss is that without the head, and the model is as it was.")


def _silent_trial(attempt: Silencer, block: int, head: int) -> list[str] | None:
    """What is wrong, in words; nothing if all is right; None for the stub."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        model = Decoder(5, 12, 3, layers=2, context=6).double()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.4)
        inputs, targets = torch.randint(5, (2, 4, 6))
    before = copy.deepcopy(model.state_dict())
    result, problem = try_out(attempt, model, inputs, targets, block, head)
    if problem:
        return [problem]
    if result is ...:
        return None
    model_now = model.state_dict()
    kept = all(torch.equal(before[name], model_now[name]) for name in before)
    model.load_state_dict(before)
    right = loss_without(model, inputs, targets, block, head, columns)
    if isinstance(result, Tensor):
        result = result.detach()
    if not same(result, right):
        return wrong_loss(result, right, model, (inputs, targets, block, head))
    if not kept:
        return ["The loss is right, but the model was changed: put the weights back."]
    return []


Mender = Callable[[nn.Parameter, nn.Parameter], None]


def check_tied(attempt: Mender) -> Verdict:
    """Check `my_mend(first, last)`: two copies of one tensor get the gradient of that tensor.

    Args:
        attempt: Takes two parameters with gradients; changes the gradients, and nothing else.
    """
    where = '"One tensor, two devices?"'
    if not callable(attempt):
        return no_function(attempt, where)
    for shape in ((1, 2), (3, 2)):
        first, last = (_with_gradient(shape, seed) for seed in (1, 2))
        before, a, b = first.detach().clone(), first.grad.clone(), last.grad.clone()
        result, problem = try_out(attempt, first, last)
        if problem:
            return not_yet([problem, "Both have a `.grad`, of the same shape."], where)
        untouched = [_is(first.grad, a), _is(last.grad, b)]
        if result is ... and all(untouched):
            return not_attempted()
        if not (_is(first, before) and _is(last, before)):
            return not_yet(["The copies themselves were changed: change `.grad` alone."], where)
        if not (_is(first.grad, a + b) and _is(last.grad, a + b)):
            return not_yet(_wrong_gradients(first, last, a, b), where)
    return correct("Both copies have the sum, and so take the same step.")


def _with_gradient(shape: tuple[int, int], seed: int) -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(shape))
    chance = torch.Generator().manual_seed(seed)
    parameter.grad = torch.randn(shape, generator=chance)
    return parameter


def _is(found: Tensor | None, wanted: Tensor) -> bool:
    return isinstance(found, Tensor) and same(found.detach(), wanted)


def _wrong_gradients(first: nn.Parameter, last: nn.Parameter, a: Tensor, b: Tensor) -> list[str]:
    """What was found in place of the sum of a and b, in words."""
    total = a + b
    known = (
        ((a, b), "Both gradients are as they were. `x = x + y` in a function changes no tensor."),
        ((total / 2, total / 2), "That is the mean. Used twice, a tensor gets the sum."),
        ((total, b), "The last copy still has the gradient of its own use alone."),
        ((a, total), "The first copy still has the gradient of its own use alone."),
        ((total, total + b), "The second sum took in the first one's result: add up once."),
        ((total + a, total), "The second sum took in the first one's result: add up once."),
        ((b, a), "Changed places: each copy now has the gradient of the other use alone."),
        ((a, a), "The gradient of the last use is lost."),
        ((b, b), "The gradient of the first use is lost."),
    )
    lines = [f"gradients {short(a)} and {short(b)}", f"expected {short(total)} for both",
             f"got {short(first.grad)} and {short(last.grad)}"]  # fmt: skip
    meant = [words for (x, y), words in known if _is(first.grad, x) and _is(last.grad, y)]
    return [*lines, *(meant or ["Add both gradients once, and give both copies the sum."])[:1]]
