"""An explorer's frames are its own pictures, at each position of the controls that are shown."""

import ipywidgets
import pytest

from mpcourse.figures.svg import Picture
from mpcourse.widgets import picture_slider, scatter_explorer, schedule_explorer, schedule_view
from mpcourse.widgets.frames import FRAMES, frames_of, unpacked


def test_each_position_has_the_widgets_own_picture():
    explorer = schedule_explorer()
    shown = {"schedule": None, "devices": (2, 4), "microbatches": (3, 8)}
    frames = unpacked(frames_of(explorer.draw, explorer.controls, shown))
    assert frames["pictures"][frames["first"]] == explorer.view.value
    controls = {row["label"]: row["words"] for row in frames["controls"]}
    assert list(controls) == ["schedule", "devices", "micro-batches"]
    at = (controls["schedule"].index("gpipe") * 2 + 0) * 2 + 1
    assert frames["pictures"][frames["order"][at]] == schedule_view("gpipe", 2, 8).svg
    assert [row["slider"] for row in frames["controls"]] == [False, False, False]


def test_a_picture_is_there_once_and_frames_are_the_same_each_time():
    pictures = [Picture(f"<svg>{name}</svg>", name, name) for name in ("one", "two")]
    explorer = picture_slider({1: pictures[0], 2: pictures[1], 3: pictures[0]}, "number")
    frames = unpacked(explorer.frames())
    assert frames["pictures"] == [picture.svg for picture in pictures]
    assert (frames["order"], frames["first"]) == ([0, 1, 0], 0)
    row = {"label": "number", "words": ["1", "2", "3"], "start": 0, "slider": True}
    assert frames["controls"] == [row]
    assert explorer.frames() == explorer.frames()


def test_a_page_keeps_the_frames_of_what_it_has_made_itself():
    slider = picture_slider({1: Picture("<svg></svg>", "one", "one")}, "number")
    if not hasattr(ipywidgets.DOMWidget, "_repr_mimebundle_"):
        pytest.skip("ipywidgets 7 shows its widgets in another way")
    assert slider._repr_mimebundle_()[FRAMES] == slider.frames()
    assert FRAMES not in scatter_explorer()._repr_mimebundle_()
