"""Solutions: when compiling pays, how many graphs it makes, a model that is one graph."""

import torch


def my_payback(startup, eager, compiled):
    """Each call saves `eager - compiled`, and the savings have to add up to the extra start-up.

    Calls come whole, so round up: the floor of the negative number, negated. Where a compiled call
    is no faster, nothing is ever paid back.
    """
    if compiled >= eager:
        return None
    return -int(-startup // (eager - compiled))


def my_graphs(sizes):
    """The first graph holds for its own size, the second for every size but 1.

    A size of 1 is special, because it broadcasts: it has a graph of its own. So there are at most
    three: the first, the open one, and that of 1.
    """
    others = set(sizes) - {sizes[0]}
    return 1 + (1 in others) + any(size != 1 for size in others)


def my_fork(rows):
    """Both branches are computed, and a tensor chooses between them.

    Python never looks at a value, so one graph holds for all values, whatever the compiler.
    """
    return torch.where(rows.sum() > 0, rows + 1, rows - 1)
