"""The picture of layouts: bars as long as their times, and the right one marked."""

import xml.etree.ElementTree as ElementTree

import pytest
from sheets import beside_the_sheet

from mpcourse.figures import LayoutTime, layouts_picture
from mpcourse.widgets import layout_view

NAMESPACE = "{http://www.w3.org/2000/svg}"
BARS = [
    LayoutTime("8 x 1 x 1", {"products": 3.0, "waiting": 1.0}, 90e9),
    LayoutTime("1 x 8 x 1", {"products": 3.0, "waiting": 3.0}, 20e9),
    LayoutTime("1 x 1 x 8", {"products": 5.0, "waiting": 0.0}, 80e9),
]


def drawn(memory: float = 80e9):
    return layouts_picture(BARS, memory, label="simulated", caption="eight ranks")


def test_the_fastest_of_those_that_fit_is_marked():
    words = drawn().svg
    assert "1 x 1 x 8 5 s, 80 GB: the fastest" in words
    assert "8 x 1 x 1 4 s, 90 GB: does not fit" in words
    assert "8 x 1 x 1 4 s, 90 GB: the fastest" in drawn(90e9).svg
    assert "the fastest" not in drawn(10e9).svg


def test_boxes_are_as_long_as_their_seconds():
    boxes = {}
    for group in ElementTree.fromstring(drawn().svg).iter(f"{NAMESPACE}g"):
        width = float(group.find(f"{NAMESPACE}rect").attrib["width"])
        boxes.setdefault(group.findtext(f"{NAMESPACE}title"), width)
    seconds = {"products: 3 s": 3, "products: 5 s": 5, "waiting: 1 s": 1, "waiting: 3 s": 3}
    unit = boxes["products: 3 s"] / 3
    for hint, length in seconds.items():
        assert boxes[hint] == pytest.approx(length * unit, rel=1e-3)
    assert set(boxes) == {*seconds, "P", "W"}  # nothing for what takes no time, and a legend


@pytest.mark.parametrize(
    "settings", [{}, {"model": "1008 billion"}, {"model": "1.7 billion", "ranks": 8, "between": 1}]
)
def test_nothing_leaves_the_sheet(settings: dict):
    root = ElementTree.fromstring(layout_view(**settings).svg)
    assert beside_the_sheet(root) == []


def test_what_fits_stands_above_what_does_not():
    words = layout_view().svg
    head = words[words.index("<desc>") : words.index("</desc>")]
    assert head.index("the fastest") < head.index("does not fit")
    assert "simulated; 39.1 billion parameters on 64 ranks" in head


@pytest.mark.parametrize("bars", [[], [BARS[0], LayoutTime("other", {"waiting": 1.0}, 0)]])
def test_bars_of_different_purposes_are_refused(bars: list):
    with pytest.raises(ValueError, match="all have the same purposes"):
        layouts_picture(bars, 1.0, label="simulated", caption="")


def test_a_picture_that_does_not_say_where_its_times_come_from_is_refused():
    with pytest.raises(ValueError, match="guessed"):
        layouts_picture(BARS, 1.0, label="guessed", caption="")
