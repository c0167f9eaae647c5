"""The timeline with memory shows the same boxes, and below each row what that device holds."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from mpcourse.figures import memory_picture, svg, timeline_picture
from mpcourse.schedules.actions import Action
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule
from mpcourse.schedules.timeline import Event, Timeline

NAMES = ["device 0", "device 1"]
RUN = simulate(gpipe_schedule(2, 2), Costs(1, 2))  # 9 units
SHOWN = {"label": "simulated", "unit": "units"}
NAMESPACE = "{http://www.w3.org/2000/svg}"


def parse(picture: svg.Picture) -> ElementTree.Element:
    return ElementTree.fromstring(picture.svg)


def hints(picture: svg.Picture, shape: str) -> list[str]:
    """What the boxes (rect) or the grey steps (path) say when the pointer rests on them."""
    groups = parse(picture).findall(f"{NAMESPACE}g")
    return [
        group.find(f"{NAMESPACE}title").text
        for group in groups
        if group.find(f"{NAMESPACE}{shape}") is not None
    ]


def steps(picture: svg.Picture) -> list[list[tuple[float, float]]]:
    paths = parse(picture).findall(f"{NAMESPACE}g/{NAMESPACE}path")
    numbers = [re.findall(r"-?[\d.]+", path.attrib["d"]) for path in paths]
    return [list(zip(map(float, n[::2]), map(float, n[1::2]), strict=True)) for n in numbers]


def spoken(picture: svg.Picture) -> str:
    return parse(picture).find(f"{NAMESPACE}desc").text


def test_the_boxes_are_those_of_the_plain_timeline() -> None:
    plain = timeline_picture(RUN, NAMES, **SHOWN)
    assert hints(memory_picture(RUN, NAMES, **SHOWN), "rect") == hints(plain, "rect")


def test_each_device_says_what_it_held_at_most() -> None:
    picture = memory_picture(RUN, NAMES, **SHOWN)
    assert hints(picture, "path") == ["holds at most 2", "holds at most 2"]
    schedule = one_f_one_b_schedule(2, 2)
    picture = memory_picture(simulate(schedule, Costs(1, 2)), NAMES, **SHOWN)
    assert hints(picture, "path") == ["holds at most 2", "holds at most 1"]
    assert spoken(picture).endswith(
        "device 0 holds at most 2; device 1 holds at most 1; 33% of the devices' time is idle"
    )
    assert parse(picture).find(f"{NAMESPACE}title").text == (
        "Timeline of 2 devices and what they hold (simulated)"
    )


def test_the_steps_go_up_with_a_forward_and_down_with_a_backward() -> None:
    first, _ = steps(memory_picture(RUN, NAMES, **SHOWN))
    pixels = 680 / 9
    low, high = max(y for _, y in first), min(y for _, y in first)
    heights = {x: y for x, y in first[1:-1]}  # the last one at each x: what holds from there on
    at = {when: heights[round(120 + when * pixels, 2)] for when in (0, 1, 7, 9)}
    assert low - high == 22
    assert at == {0: low - 11, 1: high, 7: low - 11, 9: low}
    # device 0: F0 at 0, F1 at 1, B0 ends at 7, B1 ends at 9


def test_until_shows_what_had_begun_and_what_is_held_then() -> None:
    picture = memory_picture(RUN, NAMES, until=2.5, **SHOWN)
    assert hints(picture, "rect") == [
        "0F0 on device 0: 0 to 1 units",
        "0F1 on device 0: 1 to 2 units",
        "1F0 on device 1: 1 to 2 units",
        "1F1 on device 1: 2 to 2.5 units",
    ]
    assert hints(picture, "path") == ["holds 2, at most 2", "holds 2, at most 2"]
    picture = memory_picture(RUN, NAMES, until=8, **SHOWN)
    assert hints(picture, "path") == ["holds 1, at most 2", "holds 0, at most 2"]
    begun = hints(memory_picture(RUN, NAMES, until=0, **SHOWN), "rect")
    assert begun == ["0F0 on device 0: 0 to 0 units"]
    late = memory_picture(RUN, NAMES, until=99, **SHOWN)
    assert hints(late, "rect") == hints(memory_picture(RUN, NAMES, **SHOWN), "rect")


def test_a_stage_may_count_as_a_part_of_a_device() -> None:
    picture = memory_picture(RUN, NAMES, activation_size=0.5, until=1.5, **SHOWN)
    assert hints(picture, "path") == ["holds 1, at most 1", "holds 0.5, at most 0.5"]


def test_the_axis_can_reach_further_than_the_events() -> None:
    parts = [Timeline(RUN.events[:count], 2) for count in (2, 5)]
    pictures = [memory_picture(part, NAMES, horizon=9, **SHOWN) for part in parts]
    assert all("9 units" in picture.svg for picture in pictures)
    assert set(boxes(pictures[0])) <= set(boxes(pictures[1]))
    assert "9 units" in memory_picture(RUN, NAMES, horizon=4, **SHOWN).svg


def boxes(picture: svg.Picture) -> list[tuple[str, ...]]:
    found = parse(picture).findall(f"{NAMESPACE}g/{NAMESPACE}rect")
    return [tuple(box.attrib[key] for key in ("x", "y", "width")) for box in found]


def test_a_narrow_box_keeps_the_letter_of_its_kind() -> None:
    run = simulate(gpipe_schedule(1, 20), Costs(1, 2))  # 60 units on 680 pixels
    groups = parse(memory_picture(run, ["device 0"], **SHOWN)).findall(f"{NAMESPACE}g")
    labels = [group.findtext(f"{NAMESPACE}text") for group in groups[:40]]
    assert labels == ["F"] * 20 + [f"0B{index}" for index in range(20)]


def test_measured_times_are_drawn_in_milliseconds() -> None:
    run = Timeline((Event(0, Action(0, "F", 0), 0.0, 0.002),), 1)
    picture = memory_picture(run, ["CPU core 0"], label="measured here", caption="a step")
    assert hints(picture, "rect") == ["0F0 on CPU core 0: 0 to 2 ms"]
    assert spoken(picture).endswith("; a step")


@pytest.mark.parametrize("devices", [1, 8])
def test_everything_lies_on_the_sheet(devices: int) -> None:
    run = simulate(one_f_one_b_schedule(devices, 8), Costs(1, 2))
    names = [f"GPU 0, share {n} of 16" for n in range(devices)]
    picture = memory_picture(run, names, until=5, **SHOWN)
    root = parse(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    corners = [point for points in steps(picture) for point in points]
    corners += [
        (float(e.attrib["x"]), float(e.attrib["y"])) for e in root.iter() if "x" in e.attrib
    ]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in corners)


def test_no_events_are_drawn_as_devices_that_hold_nothing() -> None:
    picture = memory_picture(Timeline((), 2), NAMES, **SHOWN)
    assert hints(picture, "path") == ["holds at most 0"] * 2


def test_wrong_labels_and_names_are_refused() -> None:
    with pytest.raises(ValueError, match="label is one of measured here, simulated, quoted"):
        memory_picture(RUN, NAMES, label="guessed")
    with pytest.raises(ValueError, match="2 devices need names; got 1"):
        memory_picture(RUN, ["device 0"], label="simulated")
