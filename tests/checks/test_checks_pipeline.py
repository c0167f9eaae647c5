"""The checks accept right answers however they are written and explain wrong ones."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from solutions import pipeline as solutions

from mpcourse.checks import check_ceiling, check_cut_graph, check_pieces, check_split_size
from mpcourse.checks import pipeline as checks_module
from mpcourse.pipeline.microbatch import microbatch_shares, microbatch_sizes
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_ceiling(lambda times, m: ...).state == "not attempted"
    stub = check_cut_graph(lambda front, back, loss_fn, inputs, targets, size: ...)
    assert stub.state == check_cut_graph(...).state == "not attempted"
    assert check_pieces(lambda model, loss_fn, inputs, targets, size: ...).state == "not attempted"
    assert check_split_size(lambda sizes, rows, fixed, each: ...).state == "not attempted"
    assert check_ceiling(...).state == check_pieces(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_ceiling(solutions.my_ceiling).state == "correct"
    assert check_pieces(solutions.my_step).state == "correct"
    assert check_cut_graph(solutions.my_cut_step).state == "correct"
    assert check_split_size(solutions.my_split_size).state == "correct"


def simulated_ceiling(times, count):
    forward, backward = [t / 3 for t in times], [t * 2 / 3 for t in times]
    pipeline = simulate(gpipe_schedule(len(times), count), Costs(forward, backward)).makespan
    alone = simulate(gpipe_schedule(1, count), Costs(sum(forward), sum(backward))).makespan
    return alone / pipeline


def ceiling_in_fractions(times, count):
    return Fraction(count * sum(times), sum(times) + (count - 1) * max(times))


def ceiling_in_numpy(times, count):
    ends = np.zeros(len(times))
    for _ in range(count):
        before = 0.0
        for stage, time in enumerate(times):
            ends[stage] = before = max(ends[stage], before) + time
    return np.float64(count * sum(times)) / ends[-1]


def ceiling_as_a_tensor(times, count):
    times = torch.tensor(times, dtype=torch.double)
    return count * times.sum() / (times.sum() + (count - 1) * times.max())


def by_sums(model, loss_fn, inputs, targets, size):
    parts = list(zip(inputs.split(size), targets.split(size), strict=True))
    losses = [loss_fn(model(x), y) * (len(x) / len(inputs)) for x, y in parts]
    torch.stack(losses).sum().backward()
    return torch.stack(losses).sum().detach()


def by_the_engine(model, loss_fn, inputs, targets, size):
    pipeline = Pipeline([torch.nn.Sequential(model)], ["cpu"], microbatch_size=size)
    return pipeline.step(inputs, targets, loss_fn, reduction="mean")


def cut_pieces(front, inputs, targets, size):
    """Per piece: the front's output, the leaf, the targets and the share of the rows."""
    for x, y in zip(inputs.split(size), targets.split(size), strict=True):
        output = front(x)
        yield output, output.detach().requires_grad_(), y, len(x) / len(inputs)


def all_forwards_first(front, back, loss_fn, inputs, targets, size):
    kept, total = [], 0
    for output, leaf, y, share in list(cut_pieces(front, inputs, targets, size)):
        kept.append((output, leaf, loss_fn(back(leaf), y) * share))
    for output, leaf, loss in reversed(kept):
        loss.backward()
        torch.autograd.backward(output, leaf.grad)
        total = total + loss.detach()
    return total


def by_asking_for_gradients(front, back, loss_fn, inputs, targets, size):
    total = 0.0
    for output, leaf, y, share in cut_pieces(front, inputs, targets, size):
        leaf = output.clone().detach().requires_grad_(True)
        weights = list(back.parameters())
        loss = loss_fn(back(leaf), y)
        at_the_cut, *gradients = torch.autograd.grad(loss, [leaf, *weights])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = share * gradient + (0 if weight.grad is None else weight.grad)
        output.backward(share * at_the_cut)
        total += share * loss.item()
    return total


def cut_by_the_engine(front, back, loss_fn, inputs, targets, size):
    stages = [torch.nn.Sequential(front), back]
    pipeline = Pipeline(stages, ["cpu:0", "cpu:1"], microbatch_size=size)
    return pipeline.step(inputs, targets, loss_fn, reduction="mean")


def by_simulation(sizes, rows, fixed, each):
    def step(size):
        costs = Costs((fixed + each * size) / 3, (fixed + each * size) * 2 / 3)
        return simulate(one_f_one_b_schedule(2, rows // size), costs).makespan

    return sorted(sizes, key=step)[0]


@pytest.mark.parametrize(
    ("check", "attempt"),
    [
        (check_ceiling, simulated_ceiling),
        (check_ceiling, ceiling_in_fractions),
        (check_ceiling, ceiling_in_numpy),
        (check_ceiling, ceiling_as_a_tensor),
        (check_cut_graph, all_forwards_first),
        (check_cut_graph, by_asking_for_gradients),
        (check_cut_graph, cut_by_the_engine),
        (check_pieces, by_sums),
        (check_pieces, by_the_engine),
        (check_split_size, by_simulation),
    ],
)
def test_other_right_answers_are_correct(check, attempt):
    verdict = check(attempt)
    assert verdict.state == "correct", verdict


def equal_ceiling(times, m):
    p = len(times)
    return p * m / (m + p - 1)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (equal_ceiling, "the slowest sets the pace"),
        (lambda t, m: len(t), "all at work all the time"),
        (lambda t, m: sum(t) / max(t), "fills up and drains"),
        (lambda t, m: m * sum(t) / ((m + len(t) - 1) * max(t)), "in its own time"),
        (lambda t, m: m * sum(t) / (sum(t) + m * max(t)), "One piece too many"),
        (lambda t, m: m * sum(t) / (sum(t) + (m - 1) * t[0]), "need not be the first"),
        (lambda t, m: m * sum(t) / (sum(t) + (m - 1) * t[-1]), "need not be the last"),
        (lambda t, m: solutions.my_ceiling(t, m) / len(t), "the share of the devices' time in use"),
        (lambda t, m: 1 - solutions.my_ceiling(t, m) / len(t), "the bubble"),
        (lambda t, m: 1 / solutions.my_ceiling(t, m), "Upside down"),
        (lambda t, m: sum(t) + (m - 1) * max(t), "the pipeline's time"),
        (lambda t, m: 2.0 * len(t) * m, "how long after it"),
        (lambda t, m: None, "got None"),
        (lambda t, m: (t, m), "got (["),
        (7, "takes a function"),
    ],
)
def test_wrong_ceilings_are_explained(attempt, words):
    assert words.casefold() in said(check_ceiling(attempt)).casefold()


def pieces_with(scale, *, clear=False, pick=slice(None), result=None):
    """A step that weights each piece by `scale(n, N, pieces)`."""

    def attempt(model, loss_fn, inputs, targets, size):
        parts = list(zip(inputs.split(size), targets.split(size), strict=True))
        total = 0.0
        for x, y in parts[pick]:
            if clear:
                model.zero_grad()
            loss = loss_fn(model(x), y) * scale(len(x), len(inputs), len(parts))
            loss.backward()
            total += loss.item()
        return total if result is None else result(total)

    return attempt


def forgetting_backward(model, loss_fn, inputs, targets, size):
    return sum(
        loss_fn(model(x), y) for x, y in zip(inputs.split(size), targets.split(size), strict=True)
    )


def only_the_first_backward(model, loss_fn, inputs, targets, size):
    losses = [
        loss_fn(model(x), y) for x, y in zip(inputs.split(size), targets.split(size), strict=True)
    ]
    losses[0].backward()
    return losses[0].item()


def with_squared_errors(model, loss_fn, inputs, targets, size):
    return solutions.my_step(model, lambda o, t: ((o - t) ** 2).mean(), inputs, targets, size)


def with_an_optimizer(model, loss_fn, inputs, targets, size):
    loss = solutions.my_step(model, loss_fn, inputs, targets, size)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


def in_single_precision(model, loss_fn, inputs, targets, size):
    return solutions.my_step(model.float(), loss_fn, inputs.float(), targets.float(), size)


def there_and_back(model, loss_fn, inputs, targets, size):
    exact = model.weight.detach().clone()
    loss = in_single_precision(model, loss_fn, inputs, targets, size)
    model.double()
    model.weight.data.copy_(exact)
    return loss


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (pieces_with(lambda n, rows, pieces: 1 / pieces), "mean of means"),
        (pieces_with(lambda n, rows, pieces: 1.0), "they count too much"),
        (pieces_with(lambda n, rows, pieces: 1.0, clear=True), "do not clear"),
        (pieces_with(lambda n, rows, pieces: n / rows, clear=True), "do not clear"),
        (pieces_with(lambda n, rows, pieces: n / rows, pick=slice(-1)), "its rows count"),
        (
            lambda model, loss_fn, x, y, size: solutions.my_step(model, loss_fn, x, y, len(x)),
            "expected pieces of [2, 2] rows, the model saw [4]",
        ),
        (forgetting_backward, "no gradient arrived"),
        (only_the_first_backward, "for every piece"),
        (
            pieces_with(lambda n, rows, pieces: n / rows, result=lambda t: 2 * t),
            "gradients are right",
        ),
        (pieces_with(lambda n, rows, pieces: n / rows, result=lambda t: None), "got None"),
        (with_squared_errors, "call the loss_fn that is handed in"),
        (with_an_optimizer, "an optimizer's step is no"),
        (in_single_precision, "torch.float32 now"),
        (there_and_back, "somewhere the numbers pass through float32"),
        (pieces_with(lambda n, rows, pieces: 0.3 * n), "counts by n / N"),
        (lambda model, loss_fn, inputs, targets: 0.0, "TypeError"),
        ("no function", "takes a function"),
    ],
)
def test_wrong_steps_are_explained(attempt, words):
    assert words.casefold() in said(check_pieces(attempt)).casefold()


def test_a_mean_of_means_passes_even_pieces_and_fails_ragged_ones():
    verdict = check_pieces(pieces_with(lambda n, rows, pieces: 1 / pieces))
    assert verdict.lines[0] == "Given 5 rows and split_size 2:"


def cut_with(scale=lambda share, pieces: share, cut=None, hand_back=True, last_only=False):
    """A step through a cut that scales each loss by `scale(share, pieces)`."""

    def attempt(front, back, loss_fn, inputs, targets, size):
        total, parts = 0.0, list(cut_pieces(front, inputs, targets, size))
        for number, (output, leaf, y, share) in enumerate(parts):
            leaf = cut(output) if cut else leaf
            loss = loss_fn(back(leaf), y) * scale(share, len(parts))
            loss.backward()
            total += loss.item()
            if hand_back and not (last_only and number < len(parts) - 1):
                output.backward(leaf.grad)
        return total

    return attempt


def without_a_gradient(front, back, loss_fn, inputs, targets, size):
    for output, leaf, y, share in cut_pieces(front, inputs, targets, size):
        (loss_fn(back(leaf), y) * share).backward()
        output.backward()


def no_leaf_but_its_gradient(front, back, loss_fn, inputs, targets, size):
    for output, leaf, y, share in cut_pieces(front, inputs, targets, size):
        leaf = leaf.detach()
        (loss_fn(back(leaf), y) * share).backward()
        output.backward(leaf.grad)


def with_ones(front, back, loss_fn, inputs, targets, size):
    for output, leaf, y, share in cut_pieces(front, inputs, targets, size):
        (loss_fn(back(leaf), y) * share).backward()
        output.backward(torch.ones_like(output))


def front_twice(front, back, loss_fn, inputs, targets, size):
    front(inputs)
    return solutions.my_cut_step(front, back, loss_fn, inputs, targets, size)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (cut_with(cut=lambda output: output, hand_back=False), "The graph is not cut"),
        (cut_with(cut=lambda output: output.detach(), hand_back=False), "asks for no gradient"),
        (cut_with(hand_back=False), "front got no gradient"),
        (cut_with(last_only=True), "keep one output per piece"),
        (cut_with(lambda share, pieces: 1.0), "they count too much"),
        (cut_with(lambda share, pieces: 1 / pieces), "mean of means"),
        (without_a_gradient, "or is handed a gradient"),
        (no_leaf_but_its_gradient, "asks for no gradient"),
        (with_ones, "get its own leaf.grad"),
        (front_twice, "Each piece goes through once"),
        (lambda front, back, loss_fn, x, y, size: loss_fn(back(front(x)), y), "expected pieces"),
        (lambda front, back, loss_fn, x, y, size: None, "expected pieces"),
        (lambda model, loss_fn, x, y, size: 0.0, "TypeError"),
        (3, "takes a function"),
    ],
)
def test_wrong_cuts_are_explained(attempt, words):
    assert words.casefold() in said(check_cut_graph(attempt)).casefold()


def step_of(size, rows, fixed, each, waits=1):
    return (rows / size + waits) * (fixed + each * size)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda s, n, f, e: min(s), "every micro-batch has its cost"),
        (lambda s, n, f, e: max(s), "Nothing overlaps"),
        (lambda s, n, f, e: min(s, key=lambda k: n / k * (f + e * k)), "Best for one device"),
        (
            lambda s, n, f, e: n // solutions.my_split_size(s, n, f, e),
            "the number of micro-batches",
        ),
        (lambda s, n, f, e: min(step_of(k, n, f, e) for k in s), "the time of the step"),
        (lambda s, n, f, e: s.index(solutions.my_split_size(s, n, f, e)), "position in the list"),
        (lambda s, n, f, e: min(s, key=lambda k: step_of(k, n, f, e, 2)), "One slot too many"),
        (lambda s, n, f, e: min(s, key=lambda k: step_of(k, n, f, e, 0.5)), "Half a slot"),
        (lambda s, n, f, e: 100 + math.sqrt(n * f / e), "m + 1 slots"),
    ],
)
def test_wrong_split_sizes_are_explained(attempt, words):
    assert words in said(check_split_size(attempt))


def test_what_the_checks_expect_is_what_the_simulator_and_the_engine_say():
    for times, count in (([3, 3], 3), ([1, 5, 2], 7), ([2], 4)):
        case = checks_module._ceiling_case(times, count)
        assert case.expected == pytest.approx(simulated_ceiling(times, count))
    sizes = microbatch_sizes(7, microbatch_size=3)
    assert microbatch_shares(torch.nn.MSELoss(), None, sizes) == [3 / 7, 3 / 7, 1 / 7]
