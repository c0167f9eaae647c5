"""Predict a pipeline's step for every split size, then measure it (page `pipeline`).

The rule stands before anything is swept. Each stage is timed alone, forward and backward, at three
sizes of micro-batch: the smallest, the middle and the largest of the sweep. Through the three times
of each stage and direction goes a line, `fixed + per_sample * size`, and the simulator turns lines
into step times, for sizes that nobody timed too.

Why a line: joining the three times by straight pieces predicts no better here, and a line says how
much a micro-batch costs whatever its size. What it cannot know are kernels that change with the
size (on one thread torch takes another one for 1x1 convolutions below 16 samples, and others again
for a single sample: begin a sweep at two), caches, and that two stages at work share one memory.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpcourse.pipeline.microbatch import microbatch_sizes
from mpcourse.schedules.named import make_schedule
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.timeline import Timeline


@dataclass(frozen=True)
class Line:
    """What one action takes, by the size of its micro-batch.

    Attributes:
        fixed_s: Seconds that it takes whatever the size.
        per_sample_s: Seconds for each sample.
    """

    fixed_s: float
    per_sample_s: float

    def at(self, size: int) -> float:
        """Seconds for a micro-batch of `size` samples."""
        return self.fixed_s + self.per_sample_s * size


@dataclass(frozen=True)
class StageLines:
    """What the stages of a pipeline take, a line for each stage and direction.

    Attributes:
        forward: One line per stage.
        backward: One line per stage.
    """

    forward: tuple[Line, ...]
    backward: tuple[Line, ...]

    def costs(self, size: int) -> Costs:
        """The costs of a micro-batch of `size` samples, in seconds."""
        rows = (self.forward, self.backward)
        return Costs(*([line.at(size) for line in lines] for lines in rows))

    @property
    def fixed_s(self) -> float:
        """Seconds that a micro-batch costs besides its samples, over all stages."""
        return sum(line.fixed_s for line in self.forward + self.backward)


@dataclass(frozen=True)
class Agreement:
    """How far predictions are off.

    Attributes:
        errors: Size -> (predicted - measured) / measured.
        best_predicted: The size of the shortest predicted step.
        best_measured: The size of the shortest measured step.
        steps_apart: How many measured sizes lie between the two, 0 for the same one.
    """

    errors: Mapping[int, float]
    best_predicted: int
    best_measured: int
    steps_apart: int

    @property
    def median_error(self) -> float:
        """The middle of the errors, without their signs."""
        return statistics.median(abs(error) for error in self.errors.values())


def timed_sizes(sizes: Sequence[int]) -> tuple[int, int, int]:
    """The three sizes at which the stages are timed: smallest, middle, largest.

    Args:
        sizes: The sizes of the sweep, 3 or more different ones.
    """
    ordered = sorted(set(sizes))
    if len(ordered) < 3 or ordered[0] < 1:
        raise ValueError(f"three or more different sizes from 1 are needed; got {list(sizes)}")
    return ordered[0], ordered[len(ordered) // 2], ordered[-1]


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> Line:
    """The line with the least squares of *relative* errors, so that short times count as much.

    Args:
        sizes: Sizes of micro-batches, 2 or more different ones.
        seconds: One time per size, above 0.

    Returns:
        A line whose two numbers are 0 or more.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(seconds) <= 0:
        raise ValueError(
            f"a line needs a time above 0 for each of two or more different sizes; got sizes "
            f"{list(sizes)} and seconds {list(seconds)}"
        )
    weights = [1 / second**2 for second in seconds]
    x = _mean(sizes, weights)
    y = _mean(seconds, weights)
    covariance = _mean([(n - x) * (s - y) for n, s in zip(sizes, seconds, strict=True)], weights)
    slope = max(0.0, covariance / _mean([(n - x) ** 2 for n in sizes], weights))
    if y - slope * x >= 0:
        return Line(y - slope * x, slope)
    # nothing costs less than nothing: the best line through the origin
    return Line(
        0.0,
        _mean([n * s for n, s in zip(sizes, seconds, strict=True)], weights)
        / _mean([n * n for n in sizes], weights),
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def predict_step(
    lines: StageLines, num_samples: int, split_size: int, schedule: str = "1f1b"
) -> Timeline:
    """Simulate a step; nothing is run. A last micro-batch that is smaller costs less.

    Args:
        lines: What the stages take.
        num_samples: Samples of the mini-batch, 1 or more.
        split_size: Samples of a micro-batch, 1 or more.
        schedule: A name that `make_schedule` knows, for one stage per device.

    Returns:
        The timeline in seconds; its makespan is the predicted step time.
    """
    sizes = microbatch_sizes(num_samples, microbatch_size=split_size)
    stages = len(lines.forward)
    plan = make_schedule(schedule, stages, stages, len(sizes))
    return simulate(plan, [lines.costs(size) for size in sizes])


def compare(predicted: Mapping[int, float], measured: Mapping[int, float]) -> Agreement:
    """Hold predicted step times against measured ones.

    Args:
        predicted: Split size -> seconds; sizes that were not measured are left out.
        measured: Split size -> seconds, one or more.
    """
    missing = sorted(set(measured) - set(predicted))
    if missing or not measured:
        raise ValueError(f"every measured size needs a prediction; missing: {missing or 'all'}")
    errors = {n: (predicted[n] - measured[n]) / measured[n] for n in sorted(measured)}
    guess, best = (min(errors, key=times.__getitem__) for times in (predicted, measured))
    order = list(errors)
    return Agreement(errors, guess, best, abs(order.index(guess) - order.index(best)))
