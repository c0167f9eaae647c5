"""Bars of bytes say what they show in words too, and a line stands where a device ends."""

import re

import pytest

from mpcourse.figures import byte_bars

BARS = {"one": {"parameters": 8e9, "gradients": 12e9}, "two": {"parameters": 2e9, "gradients": 0.0}}


def test_everything_drawn_is_said():
    picture = byte_bars(BARS, label="simulated", caption="a model")
    assert "one: parameters 8 GB, gradients 12 GB, together 20 GB" in picture.svg
    assert "two: parameters 2 GB, gradients 0 GB, together 2 GB" in picture.svg
    assert "simulated; a model" in picture.svg
    boxes = [float(width) for width in re.findall(r'width="([\d.]+)" height="28.00"', picture.svg)]
    assert boxes == [224, 336, 56]  # 560 pixels are 20 GB; nothing is drawn for nothing


def test_only_the_lines_that_lie_on_the_sheet_are_drawn():
    drawn = re.findall(r">(\d+) GB</text>", byte_bars(BARS, label="simulated", caption="").svg)
    assert drawn.count("16") == 1
    assert not {"24", "80"} & set(drawn)


@pytest.mark.parametrize(
    ("bars", "label", "words"),
    [
        (BARS, "guessed", "label is one of"),
        ({}, "quoted", "there has to be a bar"),
        ({"a": {"x": 1.0}, "b": {"y": 1.0}}, "quoted", "all have the same purposes"),
    ],
)
def test_what_cannot_be_drawn_is_refused(bars, label, words):
    with pytest.raises(ValueError, match=words):
        byte_bars(bars, label=label, caption="")
