"""The curve of split sizes: predicted as a line, measured as marks, all of it said in words."""

import math

import pytest
from sheets import Sheet, points

from mpcourse.figures import SplitCurve, split_curve_picture, split_picture
from mpcourse.pipeline.prediction import Line, StageLines, predict_step
from mpcourse.schedules.timeline import Timeline

PREDICTED = {1: 0.8, 2: 0.5, 3: 0.4, 4: 0.45, 8: 0.6}
MEASURED = {1: 0.9, 4: 0.44}
FULL = SplitCurve(PREDICTED, MEASURED, 0.55)
LINES = StageLines((Line(0.01, 0.02),) * 2, (Line(0.02, 0.03),) * 2)
NAMES = ["device A", "device B"]


def curve(given: SplitCurve = FULL) -> Sheet:
    return Sheet(split_curve_picture(given))


def predicted_line(sheet: Sheet) -> list[tuple[float, float]]:
    """The points of the predicted line: the longest path."""
    return points(max((path.attrib["d"] for path in sheet.each("path")), key=len))


def test_the_predicted_line_is_as_high_as_its_times_over_the_logarithms_of_its_sizes():
    times = {1: 1.0, 2: 0.5, 4: 0.25, 16: 0.75}
    (left, top), (x, y), *_ = found = predicted_line(curve(SplitCurve(times)))
    assert x > left
    assert y > top  # a longer step is higher
    for size, place in zip(times, found, strict=True):
        wanted = left + (x - left) * math.log2(size), top + (y - top) * (1 - times[size]) / 0.5
        assert place == pytest.approx(wanted, abs=0.1)


def test_every_measured_size_has_a_mark_with_its_time():
    shown = curve().hints
    assert "pipeline (measured here), split size 4: 440 ms" in shown
    assert sum("split size" in hint for hint in shown) == len(MEASURED)


def test_the_legend_names_what_is_there_and_where_it_comes_from():
    everything = [
        "pipeline, predicted (simulated)",
        "pipeline (measured here)",
        "one device, whole batch (measured here)",
    ]
    assert curve().words[:3] == everything
    others = SplitCurve(PREDICTED, whole_s=0.5, others={"two copies": 0.3})
    assert curve(others).words[:3] == [everything[0], everything[2], "two copies (measured here)"]
    assert curve(others).description.endswith("; two copies (measured here): 300 ms")
    alone = curve(SplitCurve(PREDICTED)).words
    assert alone[0] == everything[0]
    assert not set(everything[1:]) & set(alone)


def test_the_curve_says_it_all_in_words():
    assert curve().description == (
        "pipeline, predicted (simulated): 1: 800 ms, 2: 500 ms, 3: 400 ms, 4: 450 ms, 8: 600 ms; "
        "pipeline (measured here): 1: 900 ms, 4: 440 ms; "
        "one device, whole batch (measured here): 550 ms"
    )


def test_a_step_stands_above_the_curve_with_its_headline():
    step = predict_step(LINES, 8, 4)
    given = SplitCurve({n: predict_step(LINES, 8, n).makespan for n in (1, 2, 4, 8)})
    sheet = Sheet(split_picture(given, 4, step, NAMES))
    headline = "simulated; split size 4, 2 micro-batches: 690 ms, 33% idle"
    assert sheet.words[:3] == [headline, *NAMES]
    assert sheet.description.startswith(headline)
    assert [box["label"] for box in sheet.boxes] == [str(event.action) for event in step.events]
    whole = Sheet(split_picture(given, 8, predict_step(LINES, 8, 8), NAMES))
    assert whole.words[0].startswith("simulated; split size 8, 1 micro-batch: ")


def test_the_chosen_size_has_a_ring_on_the_line():
    sheet = Sheet(split_picture(FULL, 3, Timeline((), 2), NAMES))
    ring = sheet.hinted("split size 3: predicted 400 ms", "circle")
    centre = float(ring["cx"]), float(ring["cy"])
    assert centre == pytest.approx(predicted_line(sheet)[2], abs=0.01)
    assert not curve().each("circle")
    with pytest.raises(ValueError, match=r"split size 5 has no prediction; got \[1, 2, 3, 4, 8\]"):
        split_picture(FULL, 5, Timeline((), 2), NAMES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (({},), "predicted is empty"),
        (({1: 1.0}, {2: 1.0}), r"measured has sizes without a prediction: \[2\]"),
    ],
)
def test_a_curve_without_predictions_is_refused(given: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        SplitCurve(*given)
