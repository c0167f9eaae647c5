"""The curve of split sizes: predicted as a line, measured as marks, all of it said in words."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from mpcourse.figures import SplitCurve, split_curve_picture, split_picture, svg
from mpcourse.pipeline.prediction import Line, StageLines, predict_step

NAMESPACE = "{http://www.w3.org/2000/svg}"
PREDICTED = {1: 0.8, 2: 0.5, 3: 0.4, 4: 0.45, 8: 0.6}
MEASURED = {1: 0.9, 4: 0.44}
ALONE = {1: 1.0, 4: 0.7, 8: 0.55}
FULL = SplitCurve(PREDICTED, MEASURED, ALONE, 0.55)
LINES = StageLines((Line(0.01, 0.02),) * 2, (Line(0.02, 0.03),) * 2)
NAMES = ["device A", "device B"]


def parse(picture: svg.Picture) -> ElementTree.Element:
    return ElementTree.fromstring(picture.svg)


def texts(picture: svg.Picture) -> list[str]:
    return [element.text for element in parse(picture).findall(f"{NAMESPACE}text")]


def description(picture: svg.Picture) -> str:
    return parse(picture).find(f"{NAMESPACE}desc").text


def hints(picture: svg.Picture) -> list[str]:
    return [group.find(f"{NAMESPACE}title").text for group in parse(picture).iter(f"{NAMESPACE}g")]


def line_points(picture: svg.Picture) -> list[tuple[float, float]]:
    """The points of the predicted line: the longest path."""
    paths = [path.attrib["d"] for path in parse(picture).iter(f"{NAMESPACE}path")]
    numbers = max(paths, key=len)
    return [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", numbers)]


def test_the_predicted_line_has_a_point_per_size_higher_for_longer_steps():
    points = line_points(split_curve_picture(FULL))
    assert len(points) == len(PREDICTED)
    heights = dict(zip(sorted(PREDICTED), [-y for _, y in points], strict=True))
    assert sorted(heights, key=heights.__getitem__) == sorted(PREDICTED, key=PREDICTED.__getitem__)
    xs = [x for x, _ in points]
    assert xs == sorted(xs)
    assert xs[1] - xs[0] == pytest.approx(xs[3] - xs[1], abs=0.05)  # 1, 2, 4: equal ratios


def test_heights_are_in_proportion_to_the_times():
    picture = split_curve_picture(SplitCurve({1: 1.0, 2: 0.5, 4: 0.25}))
    [one, half, quarter] = [y for _, y in line_points(picture)]
    assert half - one == pytest.approx(2 * (quarter - half), abs=0.05)


def test_every_measured_size_has_a_mark_with_its_time():
    shown = hints(split_curve_picture(FULL))
    assert "pipeline (measured here), split size 4: 440 ms" in shown
    assert "one device, same micro-batches (measured here), split size 8: 550 ms" in shown
    assert sum("split size" in hint for hint in shown) == len(MEASURED) + len(ALONE)


def test_the_legend_names_what_is_there_and_where_it_comes_from():
    everything = [
        "pipeline, predicted (simulated)",
        "pipeline (measured here)",
        "one device, same micro-batches (measured here)",
        "one device, whole batch (measured here)",
    ]
    assert texts(split_curve_picture(FULL))[:4] == everything
    assert texts(split_curve_picture(SplitCurve(PREDICTED)))[0] == everything[0]
    assert not set(everything[1:]) & set(texts(split_curve_picture(SplitCurve(PREDICTED))))


def test_the_curve_says_it_all_in_words():
    assert description(split_curve_picture(FULL)) == (
        "pipeline, predicted (simulated): 1: 800 ms, 2: 500 ms, 3: 400 ms, 4: 450 ms, 8: 600 ms; "
        "pipeline (measured here): 1: 900 ms, 4: 440 ms; "
        "one device, same micro-batches (measured here): 1: 1000 ms, 4: 700 ms, 8: 550 ms; "
        "one device, whole batch (measured here): 550 ms"
    )


def test_the_chosen_size_has_a_ring_on_the_line():
    picture = split_curve_picture(FULL, chosen=3)
    assert "split size 3: predicted 400 ms" in hints(picture)
    [ring] = list(parse(picture).iter(f"{NAMESPACE}circle"))
    centre = float(ring.attrib["cx"]), float(ring.attrib["cy"])
    assert centre == pytest.approx(line_points(picture)[2], abs=0.01)
    assert not list(parse(split_curve_picture(FULL)).iter(f"{NAMESPACE}circle"))


def test_a_step_stands_above_the_curve_with_its_headline():
    step = predict_step(LINES, 8, 4)
    curve = SplitCurve({n: predict_step(LINES, 8, n).makespan for n in (1, 2, 4, 8)})
    picture = split_picture(curve, 4, step, NAMES)
    headline = "simulated; split size 4, 2 micro-batches: 690 ms, 33% idle"
    assert texts(picture)[:3] == [headline, *NAMES]
    assert description(picture).startswith(headline)
    assert [hint.split(" on ")[0] for hint in hints(picture)[:8]] == [
        str(e.action) for e in step.events
    ]
    whole = split_picture(curve, 8, predict_step(LINES, 8, 8), NAMES)
    assert texts(whole)[0].startswith("simulated; split size 8, 1 micro-batch: ")


@pytest.mark.parametrize(
    "curve",
    [
        FULL,
        SplitCurve({5: 0.1}),
        SplitCurve({1: 0.0}),
        SplitCurve({12: 3.0, 240: 9.0}, {12: 20.0}),
        SplitCurve({1: 0.1, 2: 0.1}, whole_s=5.0),
    ],
)
def test_every_curve_fits_on_the_sheet(curve: SplitCurve):
    picture = split_curve_picture(curve, chosen=min(curve.predicted))
    root = parse(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for path in root.iter(f"{NAMESPACE}path"):
        for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"]):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "predicted is empty"),
        (({1: 1.0}, {2: 1.0}), r"measured has sizes without a prediction: \[2\]"),
        (({1: 1.0}, {1: 1.0}, {3: 1.0}), r"alone has sizes without a prediction: \[3\]"),
    ],
)
def test_a_curve_without_predictions_is_refused(arguments: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        SplitCurve(*arguments)


def test_a_step_that_is_not_on_the_curve_is_refused():
    step = predict_step(LINES, 8, 4)
    with pytest.raises(ValueError, match=r"split size 4 has no prediction; got \[1\]"):
        split_picture(SplitCurve({1: 1.0}), 4, step, NAMES)
    with pytest.raises(ValueError, match="2 devices need names; got 1"):
        split_picture(SplitCurve({4: 1.0}), 4, step, NAMES[:1])


def test_a_mark_is_a_square_a_triangle_or_a_ring_with_a_hint():
    for shape in ("square", "triangle", "ring"):
        group = ElementTree.fromstring(svg.mark(5, 6, shape=shape, colour="#000", hint="a < b"))
        assert group.find("title").text == "a < b"
        assert group.find("circle" if shape == "ring" else "path") is not None
    with pytest.raises(KeyError, match="star"):
        svg.mark(5, 6, shape="star", colour="#000", hint="")


def test_a_line_may_be_broken_up():
    path = ElementTree.fromstring(svg.polyline([(1, 2), (3, 4)], colour="#123456", dashes="6 4"))
    assert path.attrib["d"] == "M1.00 2.00L3.00 4.00"
    assert (path.attrib["stroke"], path.attrib["stroke-dasharray"]) == ("#123456", "6 4")
    assert "stroke-dasharray" not in svg.polyline([(1, 2)], colour="#000")
