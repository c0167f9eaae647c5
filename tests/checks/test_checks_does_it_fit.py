"""The checks accept right answers however they are written and explain wrong ones."""

import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from solutions import does_it_fit as solutions
from torch import nn

from mpcourse.checks import (
    check_bytes_of_a_rank,
    check_extra_bytes,
    check_largest_batch,
    check_saved_bytes,
    check_slip,
)
from mpcourse.memory import ByteCounter, saved_for_backward

CHECKS = (
    check_saved_bytes,
    check_largest_batch,
    check_slip,
    check_extra_bytes,
    check_bytes_of_a_rank,
)


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


@pytest.mark.parametrize("check", CHECKS)
def test_a_stub_is_not_attempted_and_a_number_is_no_function(check):
    assert check(lambda *arguments: ...).state == "not attempted"
    assert check(...).state == "not attempted"
    assert "takes a function" in said(check(5))
    assert "ZeroDivisionError" in said(check(lambda *arguments: 1 / 0))


def test_solutions_are_correct():
    assert check_saved_bytes(solutions.my_saved_bytes).state == "correct"
    assert check_largest_batch(solutions.my_largest_batch).state == "correct"
    assert check_slip(solutions.my_slip).state == "correct"
    assert check_extra_bytes(solutions.my_extra_bytes).state == "correct"
    assert check_bytes_of_a_rank(solutions.my_bytes_of_a_rank).state == "correct"


# Saved bytes


def sum_of_saved(model, inputs, *, size=lambda t: t.nbytes, left_out=lambda t: False):
    total = 0

    def pack(tensor):
        nonlocal total
        total += 0 if left_out(tensor) else size(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs)
    return total


def counted(model, inputs, *left_out):
    with saved_for_backward(*left_out) as saved:
        model(inputs)
    return saved.total


def known(model, inputs):
    return {t.untyped_storage().data_ptr() for t in [*model.parameters(), inputs]}


def every_time(model, inputs):
    held = known(model, inputs)
    return sum_of_saved(model, inputs, left_out=lambda t: t.untyped_storage().data_ptr() in held)


def in_package(model, inputs):
    return counted(model, inputs, list(model.parameters()), inputs)


def all_live(model, inputs):
    with ByteCounter(list(model.parameters()), inputs) as counter:
        before = counter.live
        results = model(inputs)  # held while the bytes are read
        return counter.live - before if results is not None else 0


def test_the_package_counts_the_same():
    assert check_saved_bytes(in_package).state == "correct"


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (every_time, "as often as it is saved"),
        (lambda m, x: in_package(m, x) // 4, "numbers, not bytes"),
        (lambda m, x: counted(m, x, list(m.parameters())), "The inputs count here too"),
        (lambda m, x: counted(m, x, x), "The parameters count here too"),
        (all_live, "does the backward need it?"),
        (lambda m, x: 0, "each storage that is saved, once"),
    ],
)
def test_wrong_sums_are_explained(attempt, words):
    assert words in said(check_saved_bytes(attempt))


# The largest batch


def by_trying(resident, gradients, per_sample, limit):
    def fits(batch):
        return resident + max(gradients, batch * per_sample) <= limit

    return max([n for n in range(100) if fits(n)], default=0)


def test_trying_all_batches_is_correct():
    assert check_largest_batch(by_trying).state == "correct"


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda r, g, s, limit: (limit - r - g) // s, "not both"),
        (lambda r, g, s, limit: limit // s, "between two steps"),
        (lambda r, g, s, limit: -(-(limit - r) // s), "rounds up"),
        (lambda r, g, s, limit: (limit - r) // s, "no batch does"),
    ],
)
def test_wrong_batches_are_explained(attempt, words):
    assert words in said(check_largest_batch(attempt))


# A slip


class Counting(nn.Module):
    """Grows with every forward, so its second one gives another gradient."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, rows):
        self.calls += 1
        return (rows * self.calls).sin()


def test_a_module_that_counts_its_calls_is_a_slip_too():
    assert check_slip(Counting).state == "correct"


class Drawing(nn.Module):
    """Draws a factor (which the graph keeps) or a mask (which is saved) with Python's generator."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, rows):
        drawn = random.random()
        return rows * torch.full_like(rows, drawn) if self.mask else rows * drawn


def test_what_python_draws_is_a_slip_where_it_is_saved_and_none_where_it_is_not():
    assert check_slip(lambda: Drawing(mask=True)).state == "correct"
    assert "What does a module change in itself" in said(check_slip(lambda: Drawing(mask=False)))


def test_a_check_of_slips_leaves_python_s_and_numpy_s_generators_alone():
    states = random.getstate(), str(np.random.get_state())  # noqa: NPY002
    check_slip(lambda: Drawing(mask=True))
    assert states == (random.getstate(), str(np.random.get_state()))  # noqa: NPY002


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: nn.Linear(4, 4), "What does a module change in itself"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "it knows of this slip"),
        (lambda: nn.BatchNorm1d, "expected a module"),
        (lambda: nn.Linear(5, 4), "Without checkpoint"),
        (lambda: Refusing(), "find one that is silent"),
    ],
)
def test_what_is_no_slip_is_explained(attempt, words):
    assert words in said(check_slip(attempt))


class Refusing(nn.Linear):
    """Runs once."""

    def __init__(self):
        super().__init__(4, 4)
        self.ran = False

    def forward(self, rows):
        if self.ran:
            raise RuntimeError("a second forward")
        self.ran = True
        return super().forward(rows)


# Extra bytes


def at_the_end(step, held):
    with ByteCounter(held) as counter:
        before = counter.live
        step()
    return counter.live - before


def untold(step, held):
    with ByteCounter() as counter:
        step()
    return counter.peak


def not_subtracted(step, held):
    with ByteCounter(held) as counter:
        step()
    return counter.peak


def ever_made(step, held):
    class Adding(ByteCounter):
        total = 0

        def _add(self, storage):
            if storage._cdata not in self._known:
                self.total += storage.nbytes()
            super()._add(storage)

    with Adding() as counter:
        step()
    return counter.total


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (at_the_end, "left at the end"),
        (ever_made, "ever made"),
        (untold, "What was there before counts"),
        (not_subtracted, "What was there before counts"),
        (lambda step, held: 123, "remember the most"),
    ],
)
def test_wrong_peaks_are_explained(attempt, words):
    assert words in said(check_extra_bytes(attempt))


# Bytes of a rank


def of_a_rank(sizes, ranks, stage, *, cut=math.ceil, averages=2, gradients=1, first=(1, 2, 3)):
    """Another right way: a loop over parameters, in bytes from the start."""
    total = 0
    for size in sizes:
        part = cut(size / ranks)
        for count, since in zip((averages, gradients, 1), first, strict=True):
            total += 4 * count * (size if stage < since else part)
    return total


def test_other_right_bytes_of_a_rank():
    assert check_bytes_of_a_rank(of_a_rank).state == "correct"
    assert check_bytes_of_a_rank(lambda *given: float(of_a_rank(*given))).state == "correct"


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda *given: of_a_rank(*given) // 4, "numbers, not bytes"),
        (partial(of_a_rank, averages=1), "a gradient and Adam's two averages"),
        (partial(of_a_rank, gradients=0), "a weight, a gradient and Adam's two"),
        (partial(of_a_rank, first=(1, 1, 3)), "gradients from stage 2 on"),
        (partial(of_a_rank, first=(2, 3, 4)), "State is shared out from stage 1 on"),
        (partial(of_a_rank, first=(0, 0, 0)), "In stage 0 not all is shared out"),
        (partial(of_a_rank, first=(1, 1, 1)), "In stage 1 not all is shared out"),
        (lambda sizes, *rest: of_a_rank([sum(sizes)], *rest), "Each parameter is cut by itself"),
        (partial(of_a_rank, cut=math.floor), "Rank 0's part is rounded up"),
        (lambda sizes, ranks, stage: 16 * sum(sizes), "State is shared out from stage 1 on"),
        (lambda sizes, ranks, stage: str(16 * sum(sizes)), "sizes, ranks, stage = [12, 8], 1, 0"),
    ],
)
def test_wrong_bytes_of_a_rank_are_explained(attempt, words):
    assert words in said(check_bytes_of_a_rank(attempt))
