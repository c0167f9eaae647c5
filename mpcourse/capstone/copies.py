"""The rival of a pipeline: a copy of the net on each of two devices, half of the batch each.

Page `capstone`.

Copies share out their state, as ZeRO does, and may compute segments of the net again; what that
takes is counted as `plans` counts pipelines.
"""

from dataclasses import dataclass
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn

from mpcourse.capstone.plans import (
    BLOCK_PRICE,
    NUM_DEVICES,
    block_work,
    counted_costs,
    fresh_bytes,
    gradient_bytes,
    saved_bytes,
    state_bytes,
)
from mpcourse.pipeline.microbatch import microbatch_sizes

# ZeRO's number -> the share of the 16 bytes a parameter that each of two copies has: 4 for the
# weight, 4 for the gradient, 8 for Adam's sums
KEPT_STATE = {1: (4 + 4 + 4) / 16, 2: (4 + 2 + 4) / 16, 3: (2 + 2 + 4) / 16}
MOST_CUTS = 2  # more segments than three are not faster for the page's half net


@dataclass(frozen=True)
class Copies:
    """What is known of copies before they run; a device's part, each."""

    step: float  # in millions of multiply-adds; messages are free
    messages: int
    held_bytes: int  # at most: state, activations, what a backward works with, a block's weights
    size: int  # samples at a time
    cuts: tuple[int, ...]  # between segments: forwards before the last cut are done twice
    zero: int  # 1: Adam's sums are shared out; 2: gradients, too; 3: weights, too


def count_copies(
    net: nn.Sequential,
    image: Tensor,
    most_bytes: float,
    batch_size: int = 128,
    price: float = BLOCK_PRICE,
) -> list[Copies]:
    """All copies that fit into a device's room, each with the most samples at a time that fit.

    A segment keeps what comes in; while it works, it keeps its activations, too. With ZeRO-2 each
    block sends its gradient for each micro-batch, and fetches its weights once a step; with ZeRO-3
    it fetches weights before each forward and backward.

    Args:
        net: Blocks, pruned already.
        image: One sample, (1, ...).
        most_bytes: A device's room.
        batch_size: Samples of the mini-batch.
        price: Of a block, each way.
    """
    found = []
    work, image = block_work(net, image), image.cpu()
    bounds = range(1, len(net))
    for number in range(MOST_CUTS + 1):
        for cuts in combinations(bounds, number):
            segments = _segments(net, image, cuts)
            for zero in KEPT_STATE:
                room = most_bytes, batch_size // NUM_DEVICES
                found.append(_copies(net, work, segments, cuts, zero, *room, price))
    return [each for each in found if each]


@torch.no_grad()
def _segments(net: nn.Sequential, image: Tensor, cuts: tuple[int, ...]) -> list[tuple[int, int]]:
    """Of each segment: its largest block's bytes, and what is held a sample while it works."""
    segments, kept = [], 0  # kept: what came into earlier segments
    for begin, end in pairwise([0, *cuts, len(net)]):
        part = net[begin:end]
        works = saved_bytes(part, image) + gradient_bytes(part, image)
        segments.append((fresh_bytes(part), kept + works))
        kept, image = kept + image.nbytes, part(image)
    return segments


def _copies(
    net: nn.Sequential,
    work: list[float],
    segments: list[tuple[int, int]],
    cuts: tuple[int, ...],
    zero: int,
    most_bytes: float,
    share: int,
    price: float,
) -> Copies | None:
    """Copies with the most samples at a time that fit; None where not even one fits.

    A whole gradient is kept with ZeRO-1 alone: a single micro-batch makes none beside it.
    """
    state = sum(state_bytes(net, 1)) * KEPT_STATE[zero]
    once = zero == 1 and all(b + state + share * kept <= most_bytes for b, kept in segments)
    # of the largest block: the library's copy of a gradient, a fresh gradient, its weights
    whole = 1 if once else 3 if zero == 3 else 2
    needs = [(state + whole * block, kept) for block, kept in segments]
    fit = min(int((most_bytes - always) // kept) for always, kept in needs)
    if fit < 1:
        return None
    sizes = microbatch_sizes(share, num_microbatches=-(-share // fit))
    twice, step = max(cuts, default=0), 0.0
    for size in sizes:
        costs = counted_costs(work, size, price)
        step += sum(costs.forward) + sum(costs.backward) + sum(costs.forward[:twice])
    pieces, blocks = len(sizes), len(net)
    by_number = {
        1: 2 * blocks,
        2: blocks * pieces + blocks,
        3: (3 * blocks + twice) * pieces,
    }
    held = max(always + max(sizes) * kept for always, kept in needs)
    return Copies(step, by_number[zero], int(held), max(sizes), cuts, zero)
