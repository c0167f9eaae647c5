"""The checks accept right answers however they are written and explain wrong ones."""

import pytest
import torch
from solutions import sparse_training as solutions

from mpcourse.checks import check_cubic, check_keep, check_proximal, check_regrow
from mpcourse.sparse_training import cubic_sparsity


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


CHECKS = {
    "my_cubic": check_cubic,
    "my_proximal": check_proximal,
    "my_keep": check_keep,
    "my_regrow": check_regrow,
}


@pytest.mark.parametrize("name", CHECKS)
def test_stubs_are_not_attempted_and_solutions_are_correct(name):
    assert CHECKS[name](lambda *_: ...).state == "not attempted"
    assert CHECKS[name](...).state == "not attempted"
    assert CHECKS[name](getattr(solutions, name)).state == "correct"
    assert "takes a function" in said(CHECKS[name](5))
    assert "TypeError" in said(CHECKS[name](lambda: None))


def cubic_by_parts(step, begin, end, initial, final):
    if step <= begin:
        return initial
    if step >= end:
        return final
    return initial + (final - initial) * (1 - (1 - (step - begin) / (end - begin)) ** 3)


def proximal_by_cases(weight, threshold):
    result = torch.zeros_like(weight)
    result[weight > threshold] = weight[weight > threshold] - threshold
    result[weight < -threshold] = weight[weight < -threshold] + threshold
    return result


def keep_by_index(optimizer, weight, mask):
    weight.data[~mask] = 0
    for value in optimizer.state[weight].values():
        if torch.is_tensor(value) and value.dim():
            value[~mask] = 0


def regrow_by_sorting(mask, weight, gradient, count):
    """With numbers in place of masks, and a mask of 0 and 1 as the result."""
    there = [i for i, kept in enumerate(mask.flatten().tolist()) if kept]
    sizes, slopes = weight.abs().flatten().tolist(), gradient.abs().flatten().tolist()
    left = sorted(there, key=lambda i: sizes[i])[count:]
    others = [i for i in range(mask.numel()) if i not in left]
    grown = sorted(others, key=lambda i: -slopes[i])[:count]
    new, values = torch.zeros(mask.numel()), torch.zeros_like(weight).flatten()
    new[left + grown] = 1
    values[left] = weight.flatten()[left]
    return [new.view(mask.shape), values.view(mask.shape)]


def test_other_right_answers_are_correct():
    assert check_regrow(regrow_by_sorting).state == "correct"
    as_array = lambda w, t: proximal_by_cases(w, t).numpy()  # noqa: E731
    assert check_proximal(as_array).state == "correct"
    assert check_cubic(cubic_by_parts).state == "correct"
    theirs = lambda t, begin, end, s, f: cubic_sparsity(t, final=f, begin=begin, end=end, initial=s)  # noqa: E731
    assert check_cubic(theirs).state == "correct"
    assert check_proximal(proximal_by_cases).state == "correct"
    assert check_keep(keep_by_index).state == "correct"


def power(exponent):
    def attempt(step, begin, end, initial, final):
        gone = min(max((step - begin) / (end - begin), 0), 1)
        return final + (initial - final) * (1 - gone) ** exponent

    return attempt


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (power(1), "That is linear"),
        (power(2), "cubed, not squared"),
        (lambda t, b, e, s, f: s + (f - s) * min(max((t - b) / (e - b), 0), 1) ** 3, "other way"),
        (lambda t, b, e, s, f: f + (s - f) * (1 - (t - b) / (e - b)) ** 3, "after end `final`"),
        (lambda t, b, e, s, f: f + (s - f) * (1 - t / e) ** 3, "counts from begin"),
        (lambda t, b, e, s, f: solutions.my_cubic(t, b, e, 0.0, f), "not at 0"),
        (
            lambda t, b, e, s, f: s + f * (solutions.my_cubic(t, b, e, 0.0, 1.0)),
            "final - initial",
        ),
        (lambda *each: 1 - solutions.my_cubic(*each), "share that stays"),
        (lambda *each: 0.123, "share of the time that is left"),
        (lambda *each: None, "without return"),
    ],
)
def test_wrong_schedules_are_explained(attempt, words):
    assert words in said(check_cubic(attempt))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda w, t: w - t * w.sign(), "jumps over zero"),
        (lambda w, t: w - t, "up: towards zero"),
        (lambda w, t: (w - t).clamp(min=0), "Negative weights stay negative"),
        (lambda w, t: (w.abs() - t).clamp(min=0), "Give the sign back"),
        (lambda w, t: torch.where(w.abs() > t, w, 0.0), "move by the threshold too"),
        (lambda w, t: w.clamp(-t, t), "keeps what should go"),
        (lambda w, t: w * (1 - t), "weight decay"),
        (lambda w, t: w.sign() * (w.abs() + t), "Away from zero"),
        (lambda w, t: w * 2, "|weight| - threshold"),
        (lambda w, t: w.copy_(solutions.my_proximal(w, t)), "handed in has changed"),
    ],
)
def test_wrong_proximal_steps_are_explained(attempt, words):
    assert words in said(check_proximal(attempt))


@torch.no_grad()
def weight_only(optimizer, weight, mask):
    weight.mul_(mask)


@torch.no_grad()
def forgetting_all(optimizer, weight, mask):
    weight.mul_(mask)
    for value in optimizer.state.get(weight, {}).values():
        if torch.is_tensor(value):
            value.zero_()


@torch.no_grad()
def clearing_the_state(optimizer, weight, mask):
    weight.mul_(mask)
    optimizer.state.clear()


@torch.no_grad()
def inverted(optimizer, weight, mask):
    weight.mul_(~mask)


@torch.no_grad()
def only_sgd(optimizer, weight, mask):
    weight.mul_(mask)
    optimizer.state[weight]["momentum_buffer"].mul_(mask)


@torch.no_grad()
def every_parameter(optimizer, weight, mask):
    solutions.my_keep(optimizer, weight, mask)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter is not weight:
                parameter.zero_()


@torch.no_grad()
def every_memory(optimizer, weight, mask):
    weight.mul_(mask)
    for state in optimizer.state.values():
        for value in state.values():
            if torch.is_tensor(value) and value.shape == mask.shape:
                value.mul_(mask)


def dropping_the_gradient(optimizer, weight, mask):
    solutions.my_keep(optimizer, weight, mask)
    weight.grad = None


@torch.no_grad()
def zero_steps(optimizer, weight, mask):
    solutions.my_keep(optimizer, weight, mask)
    for value in optimizer.state.get(weight, {}).values():
        if torch.is_tensor(value) and value.dim() == 0:
            value.zero_()


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (weight_only, "would move by what is remembered"),
        (forgetting_all, "zero the pruned entries only"),
        (clearing_the_state, "is gone"),
        (inverted, "True where a weight stays"),
        (only_sgd, "there may be no such entry"),
        (every_parameter, "only weight and optimizer.state[weight]"),
        (every_memory, "only weight and optimizer.state[weight]"),
        (dropping_the_gradient, "a gradient, another parameter"),
        (zero_steps, "it counts steps"),
        (lambda optimizer, weight, mask: weight.mul_(mask), "needs torch.no_grad()"),
        (lambda optimizer, weight, mask: weight * mask, "change weight itself"),
        (lambda optimizer, weight, mask: weight.data.fill_(0), "keep the values that the step"),
    ],
)
def test_wrong_ways_to_keep_zeros_are_explained(attempt, words):
    assert words in said(check_keep(attempt))


def regrowing(
    size=torch.abs, want=torch.abs, pool=lambda mask, left: ~left, start=lambda *_: 0.0, missing=1
):
    """The solution with one part done in another way."""

    def attempt(mask, weight, gradient, count):
        left = mask.clone().flatten()
        sizes = size(weight).masked_fill(~mask, torch.inf) if missing else size(weight)
        left[sizes.flatten().argsort(stable=True)[:count]] = False
        left = left.view(mask.shape)
        new = left.clone().flatten()
        wanted = want(gradient).masked_fill(~pool(mask, left), -torch.inf).flatten()
        new[wanted.argsort(descending=True, stable=True)[:count]] = True
        new = new.view(mask.shape)
        return new, torch.where(new & ~left, start(weight, gradient), weight * left)

    return attempt


def regrow_in_place(mask, weight, gradient, count):
    new, values = solutions.my_regrow(mask, weight, gradient, count)
    mask.copy_(new)
    return new, values


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (regrowing(start=lambda weight, gradient: weight), "it starts at zero too"),
        (regrowing(start=lambda weight, gradient: gradient), "New weights are 0"),
        (regrowing(want=lambda g: g), "the size of the gradient"),
        (regrowing(want=lambda g: -g), "size of the gradient is largest"),
        (regrowing(want=lambda g: -g.abs()), "where the gradient is smallest"),
        (regrowing(size=lambda w: w), "drop by absolute value"),
        (regrowing(size=lambda w: -w.abs()), "The smallest weights are dropped"),
        (regrowing(pool=lambda m, left: torch.ones_like(m)), "fewer weights come than go"),
        (regrowing(pool=lambda m, left: ~m), "may grow again"),
        (regrowing(missing=0), "no smallest weights"),
        (lambda m, w, g, n: (solutions.my_regrow(m, w, g, n)[0], w), "starts at zero"),
        (lambda m, w, g, n: (m, w), "|gradient| is largest"),
        (lambda m, w, g, n: solutions.my_regrow(m, w, g, n)[0], "Return two tensors"),
        (lambda m, w, g, n: solutions.my_regrow(m, w, g, n)[::-1], "The mask first"),
        (lambda m, w, g, n: None, "without return"),
        (regrow_in_place, "has changed"),
    ],
)
def test_wrong_regrowths_are_explained(attempt, words):
    assert words in said(check_regrow(attempt))
