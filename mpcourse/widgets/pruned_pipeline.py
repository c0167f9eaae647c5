"""A picture of a pruned pipeline: how much is kept, where the cut is, what is gained."""

from collections.abc import Mapping, Sequence

from mpcourse.capstone.plans import Plan, counted_costs, simulate_plan
from mpcourse.figures import gains_picture
from mpcourse.figures.svg import Picture

Work = Mapping[float, Sequence[float]]
BATCH = 128  # samples of a mini-batch


def pruning_view(
    work: Work,
    start: int,
    keep: float = 0.5,
    cut: int | None = None,
    microbatches: int = 8,
) -> Picture:
    """A step at one share, and speed-ups over all shares.

    Args:
        work: Share of channels kept in some blocks -> work of each block. The share 1 is there.
        start: The cut of the pipeline that speed-ups are over; it is unpruned.
        keep: The share of channels kept.
        cut: How many blocks the first device has; `start` when `None`.
        microbatches: How many a mini-batch is cut into.
    """
    cut = start if cut is None else cut
    size = BATCH / microbatches

    def slot(share: float, end: int | None) -> float:
        """Time of one micro-batch, there and back, in the first blocks up to `end`."""
        costs = counted_costs(work[share], size)
        return sum(costs.forward[:end]) + sum(costs.backward[:end])

    plan, before = (Plan(each, num_microbatches=microbatches) for each in (cut, start))
    began = simulate_plan(before, work[1.0], BATCH).makespan
    steps = {share: simulate_plan(plan, each, BATCH) for share, each in work.items()}
    lines = {
        f"first device alone, blocks 1 to {cut}": {s: slot(1.0, cut) / slot(s, cut) for s in work},
        "one device with all blocks": {s: slot(1.0, None) / slot(s, None) for s in work},
        f"the pipeline, over the whole net cut after block {start}": {
            share: began / step.makespan for share, step in steps.items()
        },
    }
    step = steps[keep]
    caption = (
        f"{100 * keep:g}% of the channels kept, cut after block {cut}, {microbatches} "
        f"micro-batches: step {step.makespan:,.0f} M, {step.bubble_fraction:.0%} idle"
    )
    names = ["device A", "device B"]
    return gains_picture(lines, keep, step, names, caption=caption)
