"""Lines through three timed sizes, and the step times that the simulator makes of them."""

import re

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcourse.pipeline.prediction import (
    Line,
    StageLines,
    compare,
    fit_line,
    predict_step,
    timed_sizes,
)
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule

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


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([1], [1.0]), ([2, 2], [1.0, 2.0]), ([1, 2], [1.0]), ([1, 2], [0.0, 1])]
)
def test_too_few_points_make_no_line(sizes: list, seconds: list):
    with pytest.raises(ValueError, match=re.escape(f"got sizes {sizes} and seconds {seconds}")):
        fit_line(sizes, seconds)


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


@pytest.mark.parametrize("sizes", [[], [4, 8], [4, 4, 8], [0, 1, 2]])
def test_fewer_than_three_sizes_are_refused(sizes: list):
    with pytest.raises(ValueError, match=re.escape(f"from 1 are needed; got {sizes}")):
        timed_sizes(sizes)


def test_costs_follow_the_size_of_the_microbatch():
    lines = StageLines((Line(1, 2), Line(3, 4)), (Line(5, 6), Line(7, 8)))
    assert lines.costs(10) == Costs([21, 43], [65, 87])
    assert lines.fixed_s == 16


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("size", "count"), [(1, 12), (2, 6), (3, 4), (6, 2), (12, 1)])
def test_equal_stages_take_one_slot_more_than_microbatches(schedule, size: int, count: int):
    step = predict_step(EQUAL, 12, size, schedule)
    assert step.makespan == pytest.approx((count + 1) * (3 + 6 * size))
    assert step.bubble_fraction == pytest.approx(1 / (count + 1))


def test_a_smaller_last_microbatch_costs_less_by_hand():
    # 5 samples in pieces of 4 and 1; forward 2n, backward 4n
    lines = StageLines((Line(0, 2),) * 2, (Line(0, 4),) * 2)
    step = predict_step(lines, 5, 4, "gpipe")
    assert " ".join(f"{e.action}@{e.start:g}-{e.end:g}" for e in step.events) == (
        "0F0@0-8 0F1@8-10 1F0@8-16 1F1@16-18 1B0@18-34 0B0@34-50 1B1@34-38 0B1@50-54"
    )


def test_three_stages_of_different_speed_are_simulated_as_they_are():
    lines = StageLines((Line(1, 1), Line(0, 3), Line(2, 1)), (Line(1, 2), Line(0, 6), Line(2, 2)))
    costs = Costs([3, 6, 4], [5, 12, 6])
    assert predict_step(lines, 8, 2, "gpipe") == simulate(gpipe_schedule(3, 4), costs)


def test_predictions_are_held_against_measurements():
    predicted = {1: 1.5, 2: 0.9, 3: 9.9, 4: 1.1, 8: 2.0}
    found = compare(predicted, {8: 2.0, 1: 1.0, 4: 1.0, 2: 1.2})
    assert found.errors == pytest.approx({1: 0.5, 2: -0.25, 4: 0.1, 8: 0.0})
    assert list(found.errors) == [1, 2, 4, 8]
    assert found.median_error == pytest.approx(0.175)
    assert (found.best_predicted, found.best_measured, found.steps_apart) == (2, 1, 1)


@pytest.mark.parametrize(
    ("predicted", "measured", "missing"), [({1: 1.0}, {1: 1.0, 2: 1.0}, r"\[2\]"), ({}, {}, "all")]
)
def test_a_measured_size_without_prediction_is_refused(predicted, measured, missing: str):
    with pytest.raises(ValueError, match=f"needs a prediction; missing: {missing}"):
        compare(predicted, measured)
