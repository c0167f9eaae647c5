"""The checks accept right answers however they are written and explain wrong ones."""

import copy
import math

import pytest
import torch
from solutions import a_transformer as solutions

from mpcourse.checks import (
    check_cache_bytes,
    check_causal,
    check_leak,
    check_silent_head,
    check_tied,
)
from mpcourse.transformer import Attention, Cache, Decoder, generate, next_token_loss


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    for check in (check_causal, check_leak):
        assert check(lambda scores: ...).state == check(...).state == "not attempted"
    assert check_cache_bytes(lambda *sizes: ...).state == "not attempted"
    assert check_silent_head(lambda *given: ...).state == "not attempted"
    assert check_silent_head(...).state == check_tied(...).state == "not attempted"
    assert check_tied(lambda first, last: ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_causal(solutions.my_causal_weights).state == "correct"
    assert check_leak(solutions.my_leaky_weights).state == "correct"
    assert check_cache_bytes(solutions.my_cache_bytes).state == "correct"
    assert check_silent_head(solutions.my_silent_loss).state == "correct"
    assert check_tied(solutions.my_mend).state == "correct"


def row_by_row(more):
    def attempt(scores):
        weights = torch.zeros_like(scores)
        for row in range(len(scores)):
            seen = slice(0, row + 1 + more)
            powers = scores[row, seen].exp()
            weights[row, seen] = powers / powers.sum()
        return weights

    return attempt


def by_a_real_cache(layers, width, heads, texts, tokens):
    if width > 100:
        return 8 * layers * texts * width * tokens
    cache, model = Cache(), Decoder(3, width, heads, layers, tokens)
    generate(model, torch.zeros(texts, tokens, dtype=torch.long), 1, cache=cache)
    return cache.num_bytes


class WithoutHead(torch.nn.Module):
    def __init__(self, attention: Attention, head: int) -> None:
        super().__init__()
        self.attention, self.head = attention, head

    def forward(self, x):
        values = torch.eye(x.shape[1]).to(x)  # only to find the weights' shape
        query, key, value = self.attention.project(x)
        scores = query @ key.transpose(-2, -1) / self.attention.head_width**0.5
        scores = scores.masked_fill(torch.ones_like(values).bool().triu(1), -math.inf)
        mixed = scores.softmax(-1) @ value
        mixed[:, self.head] = 0
        return self.attention.join(mixed)


def by_its_values(model, inputs, targets, block, head):
    quiet = copy.deepcopy(model)
    quiet.blocks[block].attention = WithoutHead(quiet.blocks[block].attention, head)
    return next_token_loss(quiet(inputs), targets)


@pytest.mark.parametrize(
    ("check", "attempt"),
    [
        (check_causal, row_by_row(0)),
        (check_causal, lambda scores: row_by_row(0)(scores).tolist()),
        (check_leak, lambda scores: row_by_row(1)(scores).numpy()),
        (check_leak, row_by_row(1)),
        (check_cache_bytes, by_a_real_cache),
        (check_silent_head, by_its_values),
    ],
)
def test_other_right_answers_are_correct(check, attempt):
    verdict = check(attempt)
    assert verdict.state == "correct", verdict


def hiding(diagonal, *, dim=-1, fill=-math.inf):
    def attempt(scores):
        hidden = torch.ones_like(scores).bool().triu(diagonal)
        return scores.masked_fill(hidden, fill).softmax(dim)

    return attempt


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda scores: scores.softmax(-1), "Nothing is hidden"),
        (hiding(0), "does not see itself"),
        (hiding(2), "sees the next one too"),
        (lambda scores: scores.softmax(-1).tril(), "Hidden after the softmax"),
        (lambda scores: hiding(1)(scores.T).T, "The columns sum to 1"),
        (hiding(1, dim=0), "The columns sum to 1"),
        (hiding(1, fill=0.0), "a score like others"),
        (
            lambda s: s.masked_fill(torch.ones_like(s).bool().tril(-1), -math.inf).softmax(-1),
            "The wrong half",
        ),
        (lambda scores: scores, "Put -inf"),
        (lambda scores: None, "got None"),
    ],
)
def test_wrong_weights_are_explained(attempt, words):
    assert words in said(check_causal(lambda s: attempt(s))) or words in said(check_causal(attempt))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (hiding(1), "does not leak"),
        (hiding(3), "two places ahead"),
        (lambda scores: scores.softmax(-1).tril(1), "Hidden after the softmax"),
        (lambda scores: scores.softmax(-1), "Nothing is hidden"),
    ],
)
def test_leaks_of_other_sizes_are_explained(attempt, words):
    assert words in said(check_leak(attempt))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda n, w, h, b, t: 4 * n * w * b * t, "keys and values are both kept"),
        (lambda n, w, h, b, t: 2 * n * w * b * t, "4 bytes"),
        (lambda n, w, h, b, t: 8 * w * b * t, "each block has keys and values"),
        (lambda n, w, h, b, t: 8 * n * w * h * b * t, "The heads share the width"),
        (lambda n, w, h, b, t: 8 * n * w * b * t // h, "one head's"),
        (lambda n, w, h, b, t: 8 * n * w * t, "one text's"),
        (lambda n, w, h, b, t: 8 * n * w * b * t * t, "not with their square"),
        (lambda n, w, h, b, t: 12 * n * w * b * t, "Queries are not kept"),
        (lambda n, w, h, b, t: 1, "a key and a value of `width`"),
    ],
)
def test_wrong_bytes_are_explained(attempt, words):
    assert words in said(check_cache_bytes(attempt))


def silencing(change, result=lambda loss, whole: loss, restore=True):
    """Change the right block's attention, take the loss, put the weights back."""

    def attempt(model, inputs, targets, block, head):
        before = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            whole = next_token_loss(model(inputs), targets).item()
            change(model, block, head)
            loss = next_token_loss(model(inputs), targets).item()
        if restore:
            model.load_state_dict(before)
        return result(loss, whole)

    return attempt


def zero_columns(model, block, head, start=None):
    start = 4 * head if start is None else start
    model.blocks[block].attention.output.weight[:, start : start + 4] = 0


def zero_rows(model, block, head):
    model.blocks[block].attention.output.weight[4 * head : 4 * head + 4] = 0


def zero_query(model, block, head):
    for p in model.blocks[block].attention.query.parameters():
        p[4 * head : 4 * head + 4] = 0


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (silencing(lambda *given: None), "with all heads"),
        (silencing(zero_columns, lambda loss, whole: loss - whole), "That is the difference"),
        (silencing(zero_rows), "by columns"),
        (silencing(zero_query), "Silence what it says"),
        (silencing(lambda m, b, h: zero_columns(m, 1 - b, h)), "the other block"),
        (silencing(lambda m, b, h: zero_columns(m, b, 2 - h)), "another head"),
        (
            silencing(lambda m, b, h: m.blocks[b].attention.output.weight.zero_()),
            "The whole attention",
        ),
        (silencing(zero_columns, restore=False), "put the weights back"),
        (silencing(lambda m, b, h: zero_columns(m, b, h, 1)), "Set the head's columns"),
        (lambda model: 0.0, "TypeError"),
        (3, "takes a function"),
    ],
)
def test_wrong_silences_are_explained(attempt, words):
    assert words in said(check_silent_head(attempt))


def setting(gradients):
    """Give both copies the gradients that a function of the two makes."""

    def attempt(first, last):
        first.grad, last.grad = gradients(first.grad, last.grad)

    return attempt


def one_tensor_for_both(first, last):
    first.grad += last.grad
    last.grad = first.grad


def keeps_the_stubs_last_line(first, last):
    one_tensor_for_both(first, last)
    return ...


def test_other_ways_to_add_up_are_correct():
    right = setting(lambda a, b: (a + b, b + a))
    for attempt in (one_tensor_for_both, keeps_the_stubs_last_line, right):
        assert check_tied(attempt).state == "correct"


def into_the_weights(first, last):
    first.data = last.data = (first.grad + last.grad).clone()


def adds_twice(first, last):
    first.grad += last.grad
    last.grad += first.grad


def adds_twice_from_the_end(first, last):
    last.grad += first.grad
    first.grad += last.grad


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda first, last: None, "as they were"),
        (setting(lambda a, b: ((a + b) / 2, (a + b) / 2)), "That is the mean"),
        (setting(lambda a, b: (a + b, b)), "The last copy still"),
        (setting(lambda a, b: (a, a + b)), "The first copy still"),
        (adds_twice, "add up once"),
        (adds_twice_from_the_end, "add up once"),
        (setting(lambda a, b: (b, a)), "Changed places"),
        (setting(lambda a, b: (a, a)), "of the last use is lost"),
        (setting(lambda a, b: (b, b)), "of the first use is lost"),
        (setting(lambda a, b: (a - b, a - b)), "give both copies the sum"),
        (setting(lambda a, b: (None, None)), "give both copies the sum"),
        (into_the_weights, "change `.grad` alone"),
        (lambda first: None, "TypeError"),
        (3, "takes a function"),
    ],
)
def test_wrong_sums_are_explained(attempt, words):
    assert words in said(check_tied(attempt))
