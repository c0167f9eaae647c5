"""Ticks of messages and products: who takes turns, and who waits for whom."""

from itertools import pairwise

import torch
from torch import distributed, nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import TickClock

TICKS = {"G": 2, "P": 3, "S": 4}


def gathers(group, early):
    """Two products; each multiplies a matrix that is gathered, the second before the first one."""
    parts, square = [torch.ones(8), torch.ones(8)], torch.ones(4, 4)
    wholes = [torch.empty(16), torch.empty(16)]

    def begin(index):
        return distributed.all_gather_into_tensor(
            wholes[index], parts[index], group=group, async_op=True
        )

    with TickClock(TICKS) as clock:
        works = [begin(0), begin(1)] if early else [begin(0)]
        for index, whole in enumerate(wholes):
            if index == len(works):
                works.append(begin(index))
            works[index].wait()
            result = square @ whole.view(4, 4)
        left = torch.empty(8)
        sent = result.view(-1)
        work = distributed.reduce_scatter_tensor(left, sent, group=group, async_op=True)
        before = clock.now
        work.wait()
        left /= 2
    return clock, before


def test_messages_take_turns_and_products_wait_for_what_they_read():
    for early, calls, ends in ((False, "GPGPS", (10, 14)), (True, "GGPPS", (8, 12))):
        (clock, before), _ = ranks_in_threads(lambda group, early=early: gathers(group, early), 2)
        assert clock.calls == calls
        assert (before, clock.now) == ends  # what reads the scattered tensor waits for it
        link = [event for event in clock.events if event.device_index == 0]
        assert all(first.end <= second.start for first, second in pairwise(link))
        assert [event.duration for event in link] == [2, 2, 4]
        assert clock.free == ends[1]


def reduces(group):
    """A product with a bias; its gradients are averaged, that of the bias unseen."""
    weight, bias = torch.ones(4, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    given = torch.ones(2, 4, requires_grad=True)
    with TickClock(TICKS | {"R": 8}, least=5) as clock:
        nn.functional.linear(given, weight, bias).sum().backward()
        for each in (bias, weight):
            distributed.all_reduce(each.grad, group=group)
        before = clock.now
        weight.grad /= 2
    return clock, before


def test_all_reduces_take_ticks_and_small_messages_none():
    (clock, before), _ = ranks_in_threads(reduces, 2)
    assert clock.calls == "PPPR"
    assert (before, clock.now) == (9, 17)
