"""Checks: when compiling pays, how many graphs it makes, a model that is one graph.

Page `compilation`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpcourse.checks.verdict import Case, Verdict, check_cases, not_yet, try_out
from mpcourse.compilation.shapes import CountingBackend
from mpcourse.compilation.toolchain import only_errors

Known = list[tuple[Any, str]]


def check_payback(attempt: Callable[[float, float, float], int | None]) -> Verdict:
    """Check `my_payback(startup, eager, compiled)`: after how many calls compiling has paid.

    Args:
        attempt: Takes seconds: of compile's start-up beyond eager's (above 0), of an eager call, of
            a compiled call. Returns the smallest number of calls after which compiling has not cost
            more time; None: never.
    """
    # where it comes out even, floats hold all numbers exactly
    numbers = [
        (10.0, 0.75, 0.5),
        (2.0, 0.75, 0.3),
        (3.0, 0.5, 0.125),
        (20.0, 0.003, 0.0013),
        (5.0, 0.25, 0.25),
        (5.0, 0.25, 0.5),
    ]
    cases = [_payback_case(*each) for each in numbers]
    return check_cases(attempt, cases, where='"When has a form paid back?"')


def _payback_case(startup: float, eager: float, compiled: float) -> Case:
    given = f"start-up {startup} s, eager {eager} s a call, compiled {compiled} s"
    arguments, gain = (startup, eager, compiled), eager - compiled
    if gain <= 0:  # no number is right, and none says what was thought
        kind = "A slower compiled call" if gain < 0 else "A compiled call that takes as long"
        return Case(given, arguments, None, hint=f"{kind} never pays: return None.")
    exact = startup / gain
    right = math.ceil(exact)
    known: Known = [
        (math.ceil(startup / eager), "Compiled calls take time, too: what does each one save?"),
        (math.ceil(startup / compiled), "What counts is what a call saves: eager - compiled."),
        (startup / eager, "Compiled calls take time, too: what does each one save?"),
        (-right, "A call saves eager - compiled, not the other way round."),
        (-exact, "A call saves eager - compiled, not the other way round."),
        (exact, "Calls come whole: the smallest whole number that is enough."),
        (math.floor(exact), "One call less than is needed: round up."),
        (math.floor(exact) + 1, "One more than is needed when it comes out even."),
        (round(exact), "Round up: after fewer calls, compiling has cost time still."),
    ]
    hint = "startup + calls * compiled <= calls * eager: solve for calls."
    return Case(given, arguments, right, known, hint)


def check_graphs(attempt: Callable[[list[int]], int]) -> Verdict:
    """Check `my_graphs(sizes)`: how many graphs torch.compile makes for batches of these sizes.

    Args:
        attempt: Takes batch sizes in the order of the calls, returns the number of graphs that are
            there at the end, as `torch.compile(model)` makes them without other arguments.
    """
    sizes = [[5], [5, 5], [5, 7], [5, 5, 7, 9, 11], [5, 1], [1, 5, 7], [5, 1, 7, 1, 5], [1, 1]]
    sizes += [[6, 2, 3, 1, 6, 1, 2]]
    cases = [_graphs_case(each) for each in sizes]
    return check_cases(attempt, cases, where='"Change the shape: how many graphs?"')


def graphs_of(sizes: list[int]) -> int:
    """How many graphs torch.compile makes: the first is for one size, the next for any but 1."""
    fixed: set[int] = set()
    any_but_one = False
    count = 0
    for size in sizes:
        if size in fixed or (any_but_one and size != 1):
            continue
        count += 1
        if count == 1 or size == 1:
            fixed.add(size)
        else:
            any_but_one = True
    return count


def _graphs_case(sizes: list[int]) -> Case:
    twice = graphs_of(sizes) + (sizes[0] == 1)
    known: Known = [
        (twice, "The first size is 1: its graph is the first one, and has been counted twice."),
        (len(sizes), "That counts the calls: a size that a graph fits already costs nothing."),
        (len(set(sizes)), "A graph for each size: but the second graph holds for any size but 1."),
        (min(len(set(sizes)), 2), "A size of 1 has a graph of its own: it broadcasts."),
        (graphs_of(sizes) + 1, "One too many: does the first graph fit that size still?"),
        (graphs_of(sizes) - 1, "One is missing: which size does no graph fit?"),
    ]
    hint = "The first graph: its own size. A 1: its own. Everything else shares one."
    return Case(f"batches of {sizes}", (sizes,), graphs_of(sizes), known, hint)


FORK = '"Which way does an if go?"'


def check_one_graph(attempt: Callable[[Tensor], Tensor]) -> Verdict:
    """Check `my_fork(rows)`: two branches by the values, and yet one graph.

    Args:
        attempt: Takes floats of any shape, returns them plus 1 where the sum of all is above 0,
            else minus 1.
    """
    rows = [[1.0, 2.0], [-1.0, -2.0], [3.0, -1.0], [-3.0, 1.0], [0.0, 0.0]]
    tables = [[[1.0, 2.0], [-4.0, 0.5]], [[-1.0, -2.0], [4.0, 0.5]]]
    cases = [_fork_case(each) for each in [*rows, *tables]]
    verdict = check_cases(attempt, cases, where=FORK)
    if verdict.state != "correct":
        return verdict
    (count, answers), problem = _compiled(attempt)
    if problem:
        return not_yet([f"It is right as it is; inside torch.compile {problem}"], FORK)
    if count > 1:
        line = (
            f"It is right, but torch.compile makes {count} graphs of it: somewhere Python has to "
            "look at a value (`if`, `float()`, `.item()`, `bool()`)."
        )
        return not_yet([line, "torch.where chooses without looking."], FORK)
    for given, answer in zip((1.0, -1.0), answers, strict=True):
        if not torch.equal(answer, torch.full((2,), 2 * given)):
            return not_yet([f"Compiled, [{given}, {given}] becomes {answer.tolist()}."], FORK)
    return verdict


def _compiled(attempt: Callable[[Tensor], Tensor]) -> tuple[tuple[int, list[Tensor]], str | None]:
    """Graphs and two answers of the compiled attempt, or what went wrong."""
    backend = CountingBackend()

    def run() -> list[Tensor]:
        compiled = torch.compile(attempt, backend=backend)
        return [compiled(torch.full((2,), value)) for value in (1.0, -1.0)]

    torch.compiler.reset()
    try:
        with only_errors("torch._dynamo"):
            answers, problem = try_out(run)
    finally:
        torch.compiler.reset()
    return (backend.count, answers or []), problem


def _fork_case(numbers: list) -> Case:
    rows = torch.tensor(numbers)
    right = rows + 1 if rows.sum() > 0 else rows - 1
    known: Known = [
        (torch.where(rows.sum() >= 0, rows + 1, rows - 1), "A sum of 0 is not above 0."),
        (
            torch.where(rows > 0, rows + 1, rows - 1),
            "Each value has decided for itself: the sum of all decides.",
        ),
        (
            torch.where(rows.sum(-1, keepdim=True) > 0, rows + 1, rows - 1),
            "Each row has decided for itself: the sum of all rows decides.",
        ),
        (rows + rows.sum().sign(), "At a sum of 0, sign() is 0: the else-branch is minus 1."),
        (rows + 1, "The branch of `sum > 0` has been taken, as a trace would."),
        (rows - 1, "The branch of `sum <= 0` has been taken, as a trace would."),
    ]
    hint = "torch.where(condition, one, other), where the condition is a tensor with one value."
    return Case(f"{numbers}", (rows,), right, known, hint)
