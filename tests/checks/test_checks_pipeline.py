"""The checks accept right answers however they are written and explain wrong ones."""

import math

import pytest
import torch
from solutions import pipeline as solutions

from mpcourse.checks import check_ceiling, check_pieces, check_split_size
from mpcourse.checks import pipeline as checks_module
from mpcourse.pipeline.losses import microbatch_shares
from mpcourse.pipeline.microbatch import microbatch_sizes
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_ceiling(lambda p, m: ...).state == "not attempted"
    assert check_pieces(lambda model, loss_fn, inputs, targets, size: ...).state == "not attempted"
    assert check_split_size(lambda sizes, rows, fixed, each: ...).state == "not attempted"
    assert check_ceiling(...).state == check_pieces(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_ceiling(solutions.my_ceiling).state == "correct"
    assert check_pieces(solutions.my_step).state == "correct"
    assert check_split_size(solutions.my_split_size).state == "correct"


def simulated_ceiling(stages, count):
    alone = simulate(gpipe_schedule(1, count), Costs(stages, 2 * stages)).makespan
    return alone / simulate(gpipe_schedule(stages, count), Costs(1, 2)).makespan


def by_sums(model, loss_fn, inputs, targets, size):
    parts = list(zip(inputs.split(size), targets.split(size), strict=True))
    losses = [loss_fn(model(x), y) * (len(x) / len(inputs)) for x, y in parts]
    torch.stack(losses).sum().backward()
    return torch.stack(losses).sum().detach()


def by_the_engine(model, loss_fn, inputs, targets, size):
    pipeline = Pipeline([torch.nn.Sequential(model)], ["cpu"], microbatch_size=size)
    return pipeline.step(inputs, targets, loss_fn)


def by_simulation(sizes, rows, fixed, each):
    def step(size):
        costs = Costs((fixed + each * size) / 3, (fixed + each * size) * 2 / 3)
        return simulate(one_f_one_b_schedule(2, rows // size), costs).makespan

    return sorted(sizes, key=step)[0]


@pytest.mark.parametrize(
    ("check", "attempt"),
    [
        (check_ceiling, simulated_ceiling),
        (check_pieces, by_sums),
        (check_pieces, by_the_engine),
        (check_split_size, by_simulation),
    ],
)
def test_other_right_answers_are_correct(check, attempt):
    verdict = check(attempt)
    assert verdict.state == "correct", verdict


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda p, m: m / p, "never more than p times"),
        (lambda p, m: p, "at work all the time"),
        (lambda p, m: p * m / (m + p), "One slot too many"),
        (lambda p, m: 2 * m / (m + 1), "that is for two stages"),
        (lambda p, m: m / (m + p - 1), "the share of the devices' time in use"),
        (lambda p, m: (p - 1) / (m + p - 1), "the bubble"),
        (lambda p, m: (m + p - 1) / (p * m), "Upside down"),
        (lambda p, m: (m + p - 1) / m, "Upside down"),
        (lambda p, m: 2.0 * p * m, "Count slots"),
        (lambda p, m: None, "got None"),
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


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (pieces_with(lambda n, rows, pieces: 1 / pieces), "mean of means"),
        (pieces_with(lambda n, rows, pieces: 1.0), "they count too much"),
        (pieces_with(lambda n, rows, pieces: 1.0, clear=True), "do not clear"),
        (pieces_with(lambda n, rows, pieces: n / rows, pick=slice(-1)), "its rows count"),
        (
            lambda model, loss_fn, x, y, size: solutions.my_step(model, loss_fn, x, y, len(x)),
            "expected pieces of [2, 2] rows, the model saw [4]",
        ),
        (forgetting_backward, "no gradient arrived"),
        (only_the_first_backward, "for every piece"),
        (
            pieces_with(lambda n, rows, pieces: n / rows, result=lambda t: 2 * t),
            "gradient is right",
        ),
        (pieces_with(lambda n, rows, pieces: n / rows, result=lambda t: None), "got None"),
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


def step_of(size, rows, fixed, each):
    return (rows / size + 1) * (fixed + each * size)


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
        (lambda s, n, f, e: 100 + math.sqrt(n * f / e), "m + 1 slots"),
    ],
)
def test_wrong_split_sizes_are_explained(attempt, words):
    assert words in said(check_split_size(attempt))


def test_what_the_checks_expect_is_what_the_simulator_and_the_engine_say():
    for stages, count in ((2, 3), (4, 8), (8, 2)):
        case = checks_module._ceiling_case(stages, count)
        assert case.expected == pytest.approx(simulated_ceiling(stages, count))
    sizes = microbatch_sizes(7, microbatch_size=3)
    assert microbatch_shares(torch.nn.MSELoss(), None, sizes) == [3 / 7, 3 / 7, 1 / 7]
