"""What every cut between two blocks of a model would mean.

Page `resnet50_on_two_devices`.

A model of n blocks has n - 1 cuts; cut k leaves the first k blocks on the first device.
"""

from collections.abc import Sequence
from itertools import accumulate

from mpcourse.schedules.simulation import Costs


def cut_costs(costs: Costs, cut: int) -> Costs:
    """What two stages cost, from what each block costs; the first stage has `cut` blocks."""
    count = len(costs.forward)
    if not 1 <= cut < count:
        raise ValueError(f"{count} blocks can be cut after 1 to {count - 1} of them; got {cut}")
    forward, backward = ([sum(c[:cut]), sum(c[cut:])] for c in (costs.forward, costs.backward))
    return Costs(forward, backward)


def shares_before(costs: Sequence[float]) -> list[float]:
    """Which share of the whole lies before each cut: a number from 0 to 1 per cut, rising."""
    total = sum(costs)
    if not total > 0:
        raise ValueError(f"the costs add up to {total}; shares need a sum above 0")
    return [sum_so_far / total for sum_so_far in accumulate(costs[:-1])]
