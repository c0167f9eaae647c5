"""A picture of a pruned pipeline: how much is kept, where the cut is, what is gained."""

from collections.abc import Mapping, Sequence

from mpcourse.capstone.plans import Plan, counted_costs, simulate_plan
from mpcourse.figures import gains_picture
from mpcourse.figures.svg import Picture
from mpcourse.schedules import Timeline

Work = Mapping[float, Sequence[float]]
BATCH = 128  # samples of a mini-batch


def pruning_view(
    work: Work,
    start: int,
    keep: float = 0.5,
    cut: int | None = None,
    microbatches: int = 8,
) -> Picture:
    """A step at one share, and speed-ups over all shares, with that cut and with the best of each.

    Args:
        work: Share of channels kept in some blocks -> work of each block. The share 1 is there.
        start: The cut of the pipeline that speed-ups are over; it is unpruned.
        keep: The share of channels kept.
        cut: How many blocks the first device has; `start` when `None`.
        microbatches: How many a mini-batch is cut into.
    """
    cut = start if cut is None else cut
    size = BATCH / microbatches

    def alone(share: float) -> float:
        """Time of one micro-batch, there and back, in all blocks."""
        costs = counted_costs(work[share], size)
        return sum(costs.forward) + sum(costs.backward)

    def step_of(share: float, where: int) -> Timeline:
        return simulate_plan(Plan(where, num_microbatches=microbatches), work[share], BATCH)

    began = step_of(1.0, start).makespan
    cuts = range(1, len(work[1.0]))
    shortest = {share: min(step_of(share, each).makespan for each in cuts) for share in work}
    lines = {
        "one device with all blocks, over itself": {s: alone(1.0) / alone(s) for s in work},
        f"the pipeline cut after block {cut}": {s: began / step_of(s, cut).makespan for s in work},
        "the pipeline with the best cut of each share": {s: began / shortest[s] for s in work},
    }
    step = step_of(keep, cut)
    caption = (
        f"{100 * keep:g}% of the channels kept, cut after block {cut}, {microbatches} "
        f"micro-batches: step {step.makespan:,.0f} M, {step.bubble_fraction:.0%} idle"
    )
    names = ["stage 0", "stage 1"]
    return gains_picture(lines, keep, step, names, caption=caption)
