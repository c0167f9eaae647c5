"""The checks accept right answers however they are written and explain wrong ones."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from solutions import compilation as solutions
from torch import nn

from mpcourse.checks import check_graphs, check_one_graph, check_payback
from mpcourse.checks.compilation import graphs_of
from mpcourse.compilation import count_compiles


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_payback(lambda startup, eager, compiled: ...).state == "not attempted"
    assert check_graphs(lambda sizes: ...).state == "not attempted"
    assert check_one_graph(lambda rows: ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_payback(solutions.my_payback).state == "correct"
    assert check_graphs(solutions.my_graphs).state == "correct"
    assert check_one_graph(solutions.my_fork).state == "correct"


def test_torch_makes_as_many_graphs_as_the_check_counts():
    draw = random.Random(0)
    net = nn.Linear(4, 2)
    for _ in range(12):
        sizes = draw.choices([1, 1, 2, 3, 5, 8], k=draw.randint(1, 6))
        made = count_compiles(net, [torch.ones(size, 4) for size in sizes])
        assert made[-1] == graphs_of(sizes) == solutions.my_graphs(sizes), sizes


# Other right answers


def payback_by_counting(startup, eager, compiled):
    saved = Fraction(str(eager)) - Fraction(str(compiled))
    if saved <= 0:
        return None
    calls = 0
    while calls * saved < Fraction(str(startup)):
        calls += 1
    return calls


def payback_by_numpy(startup, eager, compiled):
    return None if compiled >= eager else np.ceil(startup / (eager - compiled))


def payback_by_ceil(startup, eager, compiled):
    return None if compiled >= eager else math.ceil(startup / (eager - compiled))


def test_other_right_answers_are_correct():
    for attempt in (payback_by_counting, payback_by_ceil, payback_by_numpy):
        assert check_payback(attempt).state == "correct"
    assert check_graphs(lambda sizes: np.int64(graphs_of(sizes))).state == "correct"
    for attempt in (
        lambda rows: rows + 2 * (rows.sum() > 0) - 1,
        lambda rows: rows + (rows.sum() > 0).float() - (rows.sum() <= 0).float(),
    ):
        assert check_one_graph(attempt).state == "correct"


# Wrong answers


NO_FASTER = "A compiled call that takes as long never pays: return None."
SLOWER = "A slower compiled call never pays: return None."


def divided(startup, eager, compiled):
    return startup / (eager - compiled) if eager > compiled else None


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda s, e, c: math.ceil(s / e), "what does each one save?"),
        (lambda s, e, c: s / e, "what does each one save?"),
        (lambda s, e, c: math.ceil(s / c), "eager - compiled"),
        (lambda s, e, c: math.ceil(s / (c - e)), "not the other way round"),
        (lambda s, e, c: divided(s, e, c), "Calls come whole"),
        (lambda s, e, c: None if e <= c else math.floor(divided(s, e, c)), "round up"),
        (lambda s, e, c: None if e <= c else int(divided(s, e, c)) + 1, "comes out even"),
        (lambda s, e, c: None if e <= c else round(divided(s, e, c) - 0.01), "ound up"),
        (lambda s, e, c: math.ceil(s / (e - c)), "ZeroDivisionError"),
        (lambda s, e, c: math.ceil(divided(s, e, c) or math.ceil(s / (e - c or 1))), NO_FASTER),
        (lambda s, e, c: solutions.my_payback(s, e, c) or math.inf, NO_FASTER),
        (lambda s, e, c: solutions.my_payback(s, e, c) or 0, NO_FASTER),
        (lambda s, e, c: None if e == c else math.ceil(s / (e - c)), SLOWER),
        (lambda s, e, c: None if e == c else math.ceil(s / abs(e - c)), SLOWER),
        (
            lambda s, e, c: None if e == c else solutions.my_payback(s, e, c) or -1,
            SLOWER,
        ),
        (lambda s, e, c: "never", "solve for calls"),
        (3, "takes a function"),
    ],
)
def test_wrong_paybacks_are_explained(attempt, words):
    assert words in said(check_payback(attempt))


@pytest.mark.parametrize("startup", [10.0, 0.25, 3.0])
def test_the_solution_has_paid_back_at_its_call_and_not_before(startup):
    calls = solutions.my_payback(startup, 0.75, 0.5)
    assert startup + calls * 0.5 <= calls * 0.75
    assert startup + (calls - 1) * 0.5 > (calls - 1) * 0.75


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (len, "counts the calls"),
        (lambda sizes: len(set(sizes)), "for any size but 1"),
        (lambda sizes: min(len(set(sizes)), 2), "a graph of its own"),
        (lambda sizes: graphs_of(sizes) + 1, "One too many"),
        (lambda sizes: graphs_of(sizes) + (sizes[0] == 1), "counted twice"),
        (lambda sizes: max(graphs_of(sizes) - 1, 1), "One is missing"),
        (lambda sizes: None, "without return"),
        (3, "takes a function"),
    ],
)
def test_wrong_counts_of_graphs_are_explained(attempt, words):
    assert words in said(check_graphs(attempt))


def by_if(rows):
    return rows + 1 if rows.sum() > 0 else rows - 1


def by_row(rows):
    return torch.where(rows.sum(-1, keepdim=True) > 0, rows + 1, rows - 1)


def by_item(rows):
    return rows + (1 if rows.sum().item() > 0 else -1)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (by_if, "Python has to look at a value"),
        (by_item, "Python has to look at a value"),
        (lambda rows: torch.where(rows > 0, rows + 1, rows - 1), "the sum of all decides"),
        (by_row, "the sum of all rows decides"),
        (lambda rows: rows + rows.sum().sign(), "sign() is 0"),
        (lambda rows: rows + 1, "as a trace would"),
        (lambda rows: torch.where(rows.sum() >= 0, rows + 1, rows - 1), "not above 0"),
        (lambda rows: None, "without return"),
        (3, "takes a function"),
    ],
)
def test_wrong_forks_are_explained(attempt, words):
    assert words in said(check_one_graph(attempt))
