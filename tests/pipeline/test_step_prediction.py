"""Predictions are made from three timed sizes; where nothing interferes, measurements meet them."""

import functools
import re
import statistics
import time

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mpcourse.devices.devices import get_devices
from mpcourse.devices.timing import measure
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.prediction import (
    Line,
    SplitWork,
    StageLines,
    fit_line,
    measure_stages,
    predict_step,
    slowed,
    split_work,
    timed_sizes,
)
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import one_f_one_b_schedule
from mpcourse.splitting.resnet import resnet_blocks, thin_resnet50

EQUAL = StageLines((Line(1.0, 2.0),) * 2, (Line(2.0, 4.0),) * 2)


@given(st.floats(0, 10), st.floats(0.001, 10), st.sets(st.integers(1, 100), min_size=2))
def test_points_on_a_line_give_that_line_back(fixed: float, each: float, sizes: set[int]):
    line = fit_line(sorted(sizes), [fixed + each * size for size in sorted(sizes)])
    assert line.fixed_s == pytest.approx(fixed, abs=1e-6)
    assert line.per_sample_s == pytest.approx(each, rel=1e-6)


def test_points_beside_a_line_give_the_least_squares_of_relative_errors():
    sizes, seconds = [1, 4, 5, 20], [1.3, 2.0, 2.9, 9.0]
    slope, fixed = numpy.polyfit(sizes, seconds, 1, w=1 / numpy.array(seconds))
    line = fit_line(sizes, seconds)
    assert (line.fixed_s, line.per_sample_s) == pytest.approx((fixed, slope))


@pytest.mark.parametrize(
    ("sizes", "seconds", "line"),
    [
        ([1, 2], [3.0, 1.0], None),  # larger is faster
        ([1, 2], [1.0, 3.0], None),  # the line would begin below zero
        ([1, 10, 20], [0.1, 5.0, 30.0], None),
        ([1, 2], [2.0, 2.0], Line(2.0, 0.0)),
    ],
)
def test_nothing_takes_less_than_no_time(sizes: list, seconds: list, line: Line | None):
    found = fit_line(sizes, seconds)
    assert found.fixed_s >= 0
    assert found.per_sample_s >= 0
    assert min(seconds) / 2 <= found.at(sizes[0]) <= max(seconds)
    assert line is None or found == line


def test_too_few_points_and_sizes_are_refused():
    for sizes, seconds in [([1], [1.0]), ([2, 2], [1.0, 2.0]), ([1, 2], [1.0]), ([1, 2], [0.0, 1])]:
        with pytest.raises(ValueError, match=re.escape(f"got sizes {sizes} and seconds {seconds}")):
            fit_line(sizes, seconds)
    for sizes in ([], [4, 8], [4, 4, 8], [0, 1, 2]):
        with pytest.raises(ValueError, match=re.escape(f"from 1 are needed; got {sizes}")):
            timed_sizes(sizes)


@pytest.mark.parametrize(
    ("sizes", "timed"),
    [
        ([1, 2, 4, 5, 10, 20], (1, 5, 20)),
        ([20, 10, 5, 4, 2, 1], (1, 5, 20)),
        ([3, 7, 9], (3, 7, 9)),
        (range(1, 10), (1, 5, 9)),
        ([2, 2, 4, 8, 8], (2, 4, 8)),
    ],
)
def test_the_timed_sizes_are_the_ends_and_the_middle(sizes, timed: tuple):
    assert timed_sizes(sizes) == timed


@pytest.mark.parametrize(("size", "count"), [(1, 12), (2, 6), (3, 4), (6, 2), (12, 1)])
def test_equal_stages_take_one_slot_more_than_microbatches(size: int, count: int):
    step = predict_step(EQUAL, 12, size)
    assert step.makespan == pytest.approx((count + 1) * (3 + 6 * size))
    assert step.bubble_fraction == pytest.approx(1 / (count + 1))


def test_a_smaller_last_microbatch_costs_less_by_hand():
    # 5 samples in pieces of 4 and 1; forward 2n, backward 4n
    lines = StageLines((Line(0, 2),) * 2, (Line(0, 4),) * 2)
    step = predict_step(lines, 5, 4)
    assert " ".join(f"{e.action}@{e.start:g}-{e.end:g}" for e in step.events) == (
        "0F0@0-8 0F1@8-10 1F0@8-16 1B0@16-32 0B0@32-48 1F1@32-34 1B1@34-38 0B1@48-52"
    )


def test_three_stages_of_different_speed_are_simulated_as_they_are():
    lines = StageLines((Line(1, 1), Line(0, 3), Line(2, 1)), (Line(1, 2), Line(0, 6), Line(2, 2)))
    costs = Costs([3, 6, 4], [5, 12, 6])
    assert (lines.costs(2), lines.fixed_s) == (costs, 6)
    assert predict_step(lines, 8, 2) == simulate(one_f_one_b_schedule(3, 4), costs)


class Nap(torch.autograd.Function):
    """Sleeps in both directions: a stage whose times are known, on however busy a machine."""

    @staticmethod
    def forward(ctx, rows: Tensor, fixed: float, each: float) -> Tensor:
        ctx.seconds = 2 * (fixed + each * len(rows))
        time.sleep(fixed + each * len(rows))
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        time.sleep(ctx.seconds)
        return gradient, None, None


class Napping(nn.Module):
    def __init__(self, fixed: float, each: float) -> None:
        super().__init__()
        self.times = fixed, each
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, rows: Tensor) -> Tensor:
        return Nap.apply(rows * self.scale, *self.times)


def napping_work() -> SplitWork:
    stages = [nn.Sequential(Napping(0.004, 0.002)), nn.Sequential(Napping(0.008, 0.003))]
    return SplitWork(stages, torch.ones(12, 1), torch.zeros(12, 1), [1, 2, 3, 4, 6, 12])


def test_lines_come_near_what_the_stages_really_take():
    lines = measure_stages(napping_work(), get_devices(2), nn.MSELoss())
    assert len(lines.forward) == len(lines.backward) == 2
    for row, factor in ((lines.forward, 1), (lines.backward, 2)):
        assert row[0].per_sample_s == pytest.approx(factor * 0.002, rel=0.5)
        assert row[1].per_sample_s == pytest.approx(factor * 0.003, rel=0.5)
        assert row[1].fixed_s > row[0].fixed_s > 0


def test_a_prediction_from_three_sizes_meets_the_engine_over_six():
    work, devices, loss_fn = napping_work(), get_devices(2), nn.MSELoss()
    lines = measure_stages(work, devices, loss_fn)
    errors = []
    for size in work.sizes:
        pipeline = Pipeline(work.stages, devices, microbatch_size=size)
        step = functools.partial(pipeline.step, work.images, work.labels, loss_fn)
        took = measure(step, devices, warmup=1, repeats=3).median_s
        errors.append(abs(predict_step(lines, 12, size).makespan / took - 1))
    assert statistics.median(errors) < 0.25


@pytest.mark.parametrize(("count", "together"), [(1, 0), (2, 1), (6, 5)])
def test_only_the_moments_at_which_both_work_are_stretched(count: int, together: int):
    """Two equal stages need count + 1 slots; in count - 1 of them both are at work."""
    plan, costs = one_f_one_b_schedule(2, count), Costs(1, 2)
    alone = simulate(plan, costs)
    longer = slowed(alone, 1.5)
    assert longer.makespan == pytest.approx(alone.makespan + 0.5 * 3 * together)
    assert [event.action for event in longer.events] == [event.action for event in alone.events]
    lines = StageLines((Line(1.0, 0.0),) * 2, (Line(2.0, 0.0),) * 2, at_once=1.5)
    assert predict_step(lines, count, 1) == longer


def test_the_work_is_a_thin_resnet_cut_behind_layer2():
    work = split_work(["cpu", "cpu"])
    assert all(len(work.images) % size == 0 for size in work.sizes)
    assert len(work.sizes) >= 5
    assert min(work.sizes) == 16
    assert max(work.sizes) == len(work.images) == len(work.labels)
    front, back = work.stages
    assert [name for name, _ in front.named_children()][-1] == "layer2_3"
    assert next(name for name, _ in back.named_children()) == "layer3_0"
    with torch.no_grad():
        features = front.eval()(work.images[:2])
        assert features.shape == (2, 256, 12, 12)
        assert back.eval()(features).shape == (2, 10)


def test_a_thin_resnet_of_full_width_is_a_resnet50():
    torchvision = pytest.importorskip("torchvision")
    theirs = resnet_blocks(torchvision.models.resnet50(num_classes=7))
    ours = thin_resnet50(64, num_classes=7)
    shapes = [{k: v.shape for k, v in net.state_dict().items()} for net in (ours, theirs)]
    assert shapes[0] == shapes[1]
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), theirs.eval()(images))
