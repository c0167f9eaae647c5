"""Exercises of page `compilation`: when compiling pays, how many graphs, one graph for an if."""

import inspect
import math
from fractions import Fraction

import torch
from torch import nn

from mpcourse.compilation import count_compiles
from mpcourse.compilation.shapes import CountingBackend
from mpcourse.compilation.toolchain import only_errors
from mpcourse.exercises.exercise import Exercise, NotYet, raised

# 1. The break-even call


def my_payback(startup, eager, compiled):
    """Each call saves `eager - compiled`, and the savings have to add up to the extra start-up.

    Calls come whole, so round up: the floor of the negative number, negated. Where a compiled call
    is no faster, nothing is ever paid back.
    """
    if compiled >= eager:
        return None
    return -int(-startup // (eager - compiled))


def paid(calls):
    """None where compiling never pays, else `calls(startup, eager, compiled)`."""
    return lambda s, e, c: None if c >= e else calls(s, e, c)


def payback_by_counting(startup, eager, compiled):
    saved, calls = Fraction(str(eager)) - Fraction(str(compiled)), 0
    while 0 < saved and calls * saved < Fraction(str(startup)):
        calls += 1
    return calls or None


check_payback = Exercise(
    my_payback,
    read_again='"When has a form paid back?"',
    cases=[  # where it comes out even, floats hold all numbers exactly
        (10.0, 0.75, 0.5),
        (2.0, 0.75, 0.3),
        (3.0, 0.5, 0.125),
        (20.0, 0.003, 0.0013),
        (5.0, 0.25, 0.25),
        (5.0, 0.25, 0.5),
    ],
    given="start-up {} s, eager {} s a call, compiled {} s",
    hint="startup + calls * compiled <= calls * eager: solve for calls. "
    "A compiled call that is no faster never pays: return None.",
    wrong={
        "A compiled call that is no faster never pays: return None.": [
            lambda *given: my_payback(*given) or math.inf,
            lambda *given: my_payback(*given) or 0,
            lambda s, e, c: my_payback(s, e, c) or (None if e == c else -1),
            lambda s, e, c: None if e == c else math.ceil(s / (e - c)),
            lambda s, e, c: None if e == c else math.ceil(s / abs(e - c)),
        ],
        "Compiled calls take time, too: what does each one save?": [
            paid(lambda s, e, c: math.ceil(s / e)),
            paid(lambda s, e, c: s / e),
        ],
        "What counts is what a call saves: eager - compiled.": paid(
            lambda s, e, c: math.ceil(s / c)
        ),
        "A call saves eager - compiled, not the other way round.": [
            paid(lambda s, e, c: -math.ceil(s / (e - c))),
            paid(lambda s, e, c: s / (c - e)),
        ],
        "Calls come whole: the smallest whole number that is enough.": paid(
            lambda s, e, c: s / (e - c)
        ),
        "One call less than is needed: round up.": paid(lambda s, e, c: math.floor(s / (e - c))),
        "One more than is needed when it comes out even.": paid(
            lambda s, e, c: int(s / (e - c)) + 1
        ),
        "Round up: after fewer calls, compiling has cost time still.": paid(
            lambda s, e, c: round(s / (e - c))
        ),
        "None says that it never pays; here each call saves time. "
        "(A function without return gives None, too.)": [
            lambda s, e, c: None if c <= e else math.ceil(s / (c - e)),
            lambda *given: None,
        ],
        "solve for calls": lambda *given: "never",
    },
    also_right=[
        payback_by_counting,
        paid(lambda s, e, c: torch.tensor(s / (e - c)).ceil()),
        paid(lambda s, e, c: math.ceil(s / (e - c))),
    ],
)

# 2. How many graphs


def my_graphs(sizes):
    """The first graph holds for its own size, the second for every size but 1.

    A size of 1 is special, because it broadcasts: it has a graph of its own. So there are at most
    three: the first, the open one, and that of 1.
    """
    others = set(sizes) - {sizes[0]}
    return 1 + (1 in others) + any(size != 1 for size in others)


def graphs_of_torch(sizes):
    return count_compiles(nn.Linear(4, 2), [torch.ones(size, 4) for size in sizes])[-1]


check_graphs = Exercise(
    my_graphs,
    read_again='"Change the shape: how many graphs?"',
    cases=[
        ([5],),
        ([5, 5],),
        ([5, 7],),
        ([5, 5, 7, 9, 11],),
        ([5, 1],),
        ([1, 5, 7],),
        ([5, 1, 7, 1, 5],),
        ([1, 1],),
        ([6, 2, 3, 1, 6, 1, 2],),
    ],
    given="batches of {}",
    hint="The first graph: its own size. A 1: its own. Everything else shares one.",
    wrong={
        "The first size is 1: its graph is the first one, and has been counted twice.": (
            lambda sizes: my_graphs(sizes) + (sizes[0] == 1)
        ),
        "That counts the calls: a size that a graph fits already costs nothing.": len,
        "A graph for each size: but the second graph holds for any size but 1.": (
            lambda sizes: len(set(sizes))
        ),
        "A size of 1 has a graph of its own: it broadcasts.": (
            lambda sizes: min(len(set(sizes)), 2)
        ),
        "One too many: does the first graph fit that size still?": (
            lambda sizes: my_graphs(sizes) + 1
        ),
        "One is missing: which size does no graph fit?": [
            lambda sizes: my_graphs(sizes) - 1,
            lambda sizes: max(my_graphs(sizes) - 1, 1),
        ],
    },
    also_right=[graphs_of_torch, lambda sizes: torch.tensor(my_graphs(sizes))],
)

# 3. One graph for both ways

LOOKS = "somewhere Python has to look at a value (`if`, `float()`, `.item()`, `bool()`)."
CHOOSES = "torch.where chooses without looking."
CHANGED = "The rows that were handed in have changed: return a new tensor."


def my_fork(rows):
    """Both branches are computed, and a tensor chooses between them.

    Python never looks at a value, so one graph holds for all values, whatever the compiler.
    """
    return torch.where(rows.sum() > 0, rows + 1, rows - 1)


def eager_or_compiled(attempt, numbers, compiled):
    """What comes out; compiled, two batches go through, and there may be one graph only."""
    rows = torch.tensor(numbers)
    if not compiled:
        outcome = attempt(rows)
        if not torch.equal(rows, torch.tensor(numbers)):
            raise NotYet(CHANGED)
        return outcome
    backend = CountingBackend()
    torch.compiler.reset()
    try:
        with only_errors("torch._dynamo"):
            fast = torch.compile(inspect.unwrap(attempt), backend=backend)
            outcome = [fast(row) for row in rows]
    except Exception as error:
        raise NotYet(f"It is right as it is; inside torch.compile {raised(error)}") from None
    finally:
        torch.compiler.reset()
    if backend.count > 1:
        line = f"It is right, but torch.compile makes {backend.count} graphs of it: {LOOKS}"
        raise NotYet(line, CHOOSES)
    return outcome


check_one_graph = Exercise(
    my_fork,
    read_again='"Which way does an if go?"',
    cases=[
        ([1.0, 2.0], False),
        ([-1.0, -2.0], False),
        ([3.0, -1.0], False),
        ([-3.0, 1.0], False),
        ([0.0, 0.0], False),
        ([[1.0, 2.0], [-4.0, 0.5]], False),
        ([[-1.0, -2.0], [4.0, 0.5]], False),
        ([[1.0, 1.0], [-1.0, -1.0]], True),
    ],
    given=lambda numbers, compiled: f"{numbers}" + ", one after the other, compiled" * compiled,
    play=eager_or_compiled,
    hint="torch.where(condition, one, other), where the condition is a tensor with one value.",
    correct="All cases agree, also those that the page does not show, and there is one graph.",
    wrong={
        "A sum of 0 is not above 0.": lambda rows: torch.where(rows.sum() >= 0, rows + 1, rows - 1),
        "Each value has decided for itself: the sum of all decides.": (
            lambda rows: torch.where(rows > 0, rows + 1, rows - 1)
        ),
        "Each row has decided for itself: the sum of all rows decides.": (
            lambda rows: torch.where(rows.sum(-1, keepdim=True) > 0, rows + 1, rows - 1)
        ),
        "At a sum of 0, sign() is 0: the else-branch is minus 1.": (
            lambda rows: rows + rows.sum().sign()
        ),
        "The branch of `sum > 0` has been taken, as a trace would.": lambda rows: rows + 1,
        "The branch of `sum <= 0` has been taken, as a trace would.": lambda rows: rows - 1,
        LOOKS: [
            lambda rows: rows + 1 if rows.sum() > 0 else rows - 1,
            lambda rows: rows + (1 if rows.sum().item() > 0 else -1),
        ],
        CHANGED: lambda rows: rows.add_(2 * (rows.sum() > 0) - 1),
        "inside torch.compile it raised": lambda rows: my_fork(
            rows / (not torch.compiler.is_compiling())
        ),
    },
    also_right=[
        lambda rows: rows + 2 * (rows.sum() > 0) - 1,
        lambda rows: rows + (rows.sum() > 0).float() - (rows.sum() <= 0).float(),
    ],
)
