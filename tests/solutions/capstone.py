"""Solutions of page `capstone`: a pipeline's speed-up, a new cut, a plan under limits."""

from mpcourse.capstone.plans import Plan


def my_pipeline_speedup(before, after, num_microbatches):
    """The step before over the step after; a backward is twice a forward, so the threes cancel.

    The last forward of the last stage ends after every stage once and the slowest m - 1 times
    more; the backwards are the same again. The speed-up of the pruned stage counts only as long as
    that stage sets the pace.
    """

    def step(times):
        return sum(times) + (num_microbatches - 1) * max(times)

    return step(before) / step(after)


def my_new_cut(work, keep):
    """A block's work goes with the channels that it reads times those that it writes.

    What it reads is what the block before it keeps, so the block behind a pruned one gets cheaper
    too. Then every cut is tried, and min takes the first of those that are equally good.
    """
    read = [1.0, *keep[:-1]]
    left = [each * i * o for each, i, o in zip(work, read, keep, strict=True)]
    return min(range(1, len(left)), key=lambda cut: max(sum(left[:cut]), sum(left[cut:])))


my_plan = Plan(
    cut=4,
    schedule="1f1b",
    num_microbatches=7,
    keep={f"block{number}": 0.5 for number in range(1, 9)},
)
"""Half of the channels everywhere leaves a quarter of the work, and the balance as it was.

1F1B holds two micro-batches on device 0; of at most 19 samples each they fit when four blocks lie
there, so 7 micro-batches will do. A cut after block 5 balances a little better, but holds more,
and then needs 8.
"""
