"""What every cut between two blocks of a model would mean, counted and measured (page 05).

A model of n blocks has n - 1 cuts; cut k leaves the first k blocks on the first device.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.actions import Schedule, number_actions
from mpcourse.devices import DeviceLike
from mpcourse.pipeline import Pipeline
from mpcourse.simulate import Costs, costs_from
from mpcourse.timeline import Timeline


def one_device_schedule(num_stages: int) -> Schedule:
    """All stages on one device, one micro-batch: forward through all, then back again.

    Args:
        num_stages: 1 or more.
    """
    if num_stages < 1:
        raise ValueError(f"num_stages is 1 or more; got {num_stages}")
    stages = range(num_stages)
    there, back = [(s, "F") for s in stages], [(s, "B") for s in reversed(stages)]
    return [number_actions(there + back)]


def measure_blocks(
    blocks: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss_fn: Callable[[Any, Any], Tensor],
    device: DeviceLike,
    *,
    warmup: int = 1,
    repeats: int = 5,
) -> Costs:
    """Measure forward and backward of every block, in whole training steps on one device.

    Each block is a stage of its own, so the pipeline's timeline has the times, and each block meets
    the memory as it is in a real step. Gradients and running statistics change as in any step.

    Args:
        blocks: One after the other, they are the model; the loss counts as part of the last.
        inputs: Shape (N, ...).
        targets: For `loss_fn`.
        loss_fn: As for `Pipeline.step`.
        device: Where all blocks run.
        warmup: Steps that do not count, 0 or more.
        repeats: Steps that count, 1 or more; medians are returned.

    Returns:
        Costs with one forward and one backward per block, in seconds.
    """
    if warmup < 0 or repeats < 1:
        raise ValueError(f"warmup is 0 or more, repeats 1 or more; got {warmup} and {repeats}")
    pipeline = Pipeline(blocks, [device], one_device_schedule(len(blocks)), num_microbatches=1)
    events = []
    for repeat in range(warmup + repeats):
        pipeline.step(inputs, targets, loss_fn)
        events += pipeline.timeline.events if repeat >= warmup else ()
    return costs_from(Timeline(tuple(events), 1))


def least_costs(measured: Sequence[Costs]) -> Costs:
    """The shortest time of each block, out of several measurements of the same blocks.

    What disturbs an action makes it longer, never shorter: the shortest was disturbed least.

    Args:
        measured: One or more, each with a forward and a backward per block.
    """
    rows = [[each.forward for each in measured], [each.backward for each in measured]]
    return Costs(*([min(times) for times in zip(*row, strict=True)] for row in rows))


def cut_costs(costs: Costs, cut: int) -> Costs:
    """What two stages cost, from what each block costs.

    Args:
        costs: With one forward and one backward per block.
        cut: How many blocks the first stage has; both stages have at least one.

    Raises:
        ValueError: A stage would be empty.
    """
    count = len(costs.forward)
    if not 1 <= cut < count:
        raise ValueError(f"{count} blocks can be cut after 1 to {count - 1} of them; got {cut}")
    forward, backward = ([sum(c[:cut]), sum(c[cut:])] for c in (costs.forward, costs.backward))
    return Costs(forward, backward)


def shares_before(costs: Sequence[float]) -> list[float]:
    """Which share of the whole lies before each cut.

    Args:
        costs: One per block, 0 or more; their sum is above 0.

    Returns:
        One number from 0 to 1 per cut, rising; one fewer than there are blocks.
    """
    total = sum(costs)
    if not total > 0:
        raise ValueError(f"the costs add up to {total}; shares need a sum above 0")
    return [sum_so_far / total for sum_so_far in accumulate(costs[:-1])]


@torch.no_grad()
def crossing_bytes(blocks: Sequence[nn.Module], sample: Tensor) -> list[int]:
    """Count the bytes that each cut sends forward; as many come back as gradients.

    The blocks are run once. On the meta device that takes no time and no memory, and only there
    batch norm in training mode keeps no trace of it.

    Args:
        blocks: Each takes and returns one tensor.
        sample: Inputs of shape (N, ...); N of 1 counts the bytes per sample.

    Returns:
        One number per cut.
    """
    sizes = []
    for block in blocks:
        sample = block(sample)
        sizes.append(sample.nbytes)
    return sizes[:-1]
