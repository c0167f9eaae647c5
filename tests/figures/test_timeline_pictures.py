"""Timelines have a box per event, and below a row may stand what its device holds."""

import pytest
from sheets import SVG, Sheet, points

from mpcourse.figures import memory_picture, timeline_picture
from mpcourse.figures.marks import device_colour, device_letter
from mpcourse.schedules.actions import Action
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule
from mpcourse.schedules.timeline import Event, Timeline

NAMES = ["CPU core 0", "CPU core 1"]
EVENTS = (Event(0, "job 1", 0.0, 0.003), Event(1, "job 2", 0.001, 0.002))
RUN = simulate(gpipe_schedule(2, 2), Costs(1, 2))  # 9 units


def drawn(timeline: Timeline, *names: str, **options) -> Sheet:
    options = {"label": "measured here", **options}
    return Sheet(timeline_picture(timeline, names, **options))


def with_memory(timeline: Timeline = RUN, **options) -> Sheet:
    options = {"label": "simulated", "unit": "units", **options}
    names = [f"device {n}" for n in range(timeline.num_devices)]
    return Sheet(memory_picture(timeline, names, **options))


def held(sheet: Sheet) -> list[str]:
    """What the grey steps say when the pointer rests on them."""
    return [hint for hint in sheet.hints if hint.startswith("holds")]


def test_the_first_eight_devices_have_letters_and_colours_of_their_own():
    assert [device_letter(index) for index in (0, 1, 7, 25, 26)] == ["A", "B", "H", "Z", "A"]
    assert len({device_letter(index) for index in range(26)}) == 26
    assert len({device_colour(index) for index in range(8)}) == 8
    assert device_colour(8) == device_colour(0)


def test_a_timeline_has_a_labelled_box_per_event_on_the_row_of_its_device():
    first, second = drawn(Timeline(EVENTS, 2), *NAMES).boxes
    assert (first["label"], second["label"]) == ("job 1", "job 2")
    assert first["hint"] == "job 1 on CPU core 0: 0 to 3 ms"
    assert second["hint"] == "job 2 on CPU core 1: 1 to 2 ms"
    assert (first["fill"], second["fill"]) == (device_colour(0), device_colour(1))
    assert float(first["width"]) == pytest.approx(3 * float(second["width"]), abs=0.05)
    start = float(first["x"]) + float(first["width"]) / 3
    assert float(second["x"]) == pytest.approx(start, abs=0.05)
    assert float(second["y"]) > float(first["y"]) + float(first["height"])


def test_a_job_can_have_another_device_s_colour_and_the_axis_can_be_longer():
    first, second = drawn(Timeline(EVENTS, 2), *NAMES, colours={"job 2": 0}, horizon=0.006).boxes
    assert first["fill"] == second["fill"] == device_colour(0)
    usual = drawn(Timeline(EVENTS, 2), *NAMES).boxes[0]
    assert float(first["width"]) == pytest.approx(float(usual["width"]) / 2, abs=0.05)


def test_a_timeline_says_it_all_in_words():
    sheet = drawn(Timeline(EVENTS, 2), *NAMES)
    assert sheet.title == "Timeline of 2 devices (measured here)"
    assert sheet.description == (
        "CPU core 0 runs job 1 from 0 to 3 ms; CPU core 1 runs job 2 from 1 to 2 ms; "
        "33% of the devices' time is idle"
    )
    assert sheet.words[0] == "measured here; 33% of the devices' time is idle"
    assert sheet.words[1:4] == [*NAMES, "0"]  # then the ticks
    assert sheet.words[-2:] == ["3", "3 ms"]


def test_a_caption_replaces_the_idle_share_and_rows_need_not_be_devices():
    sheet = drawn(Timeline(EVENTS, 2), *NAMES, caption="batch size 8 & 9", row="stream")
    assert sheet.words[0] == "measured here; batch size 8 & 9"
    assert sheet.description.endswith("from 1 to 2 ms; batch size 8 & 9")
    assert sheet.title == "Timeline of 2 streams (measured here)"


@pytest.mark.parametrize(
    ("end", "options", "words"),
    [
        (4, {"unit": "units"}, "4 units"),
        (0.999, {}, "999 ms"),
        (1.0, {}, "1 s"),
        (12.5, {}, "12.5 s"),
        (2916.4, {"unit": "M"}, "2,916 M"),
        (1, {"unit": "<s>"}, "1 <s>"),
    ],
)
def test_times_are_in_the_unit_that_is_asked_for(end: float, options: dict, words: str):
    sheet = drawn(Timeline((Event(0, "<job>", 0, end),), 1), "a & b", **options)
    assert sheet.words[-1] == words
    assert sheet.boxes[0]["hint"] == f"<job> on a & b: 0 to {words}"
    assert sheet.boxes[0]["label"] == "<job>"


def test_a_pipeline_s_actions_are_coloured_by_kind_and_keep_their_letters():
    actions = [Action(0, kind, n) for kind, n in [("F", 0), ("F", 1), ("I", 0), ("W", 0), ("B", 1)]]
    events = [Event(0, action, n, n + 1) for n, action in enumerate(actions)]
    found = drawn(Timeline(tuple(events), 1), "device A").boxes
    assert [box["label"] for box in found] == ["0F0", "0F1", "0I0", "0W0", "0B1"]
    forward, again, *backwards = [box["fill"] for box in found]
    assert forward == again
    assert len({forward, *backwards}) == 4


@pytest.mark.parametrize("times", [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)])
def test_an_event_without_length_can_still_be_seen(times: tuple[float, float]):
    events = (Event(0, "job 1", 0.0, 2.0), Event(1, "blink", *times))
    blink = drawn(Timeline(events, 2), *NAMES).boxes[1]
    assert (float(blink["width"]), blink["label"]) == (1, "blink")


def test_with_memory_the_boxes_are_those_of_the_plain_timeline():
    plain = drawn(RUN, "device 0", "device 1", label="simulated", unit="units")
    found = [box["hint"] for box in with_memory().boxes]
    assert found == [box["hint"] for box in plain.boxes]


def test_each_device_says_what_it_held_at_most():
    assert held(with_memory()) == ["holds at most 2"] * 2
    sheet = with_memory(simulate(one_f_one_b_schedule(2, 2), Costs(1, 2)))
    assert held(sheet) == ["holds at most 2", "holds at most 1"]
    assert sheet.description.endswith(
        "device 0 holds at most 2; device 1 holds at most 1; 33% of the devices' time is idle"
    )
    assert sheet.title == "Timeline of 2 devices and what they hold (simulated)"
    assert held(with_memory(Timeline((), 2))) == ["holds at most 0"] * 2


def test_the_steps_go_up_with_a_forward_and_down_with_a_backward():
    first = points(with_memory().root.findall(f"{SVG}g/{SVG}path")[0].attrib["d"])
    low, high = max(y for _, y in first), min(y for _, y in first)
    heights = {x: y for x, y in first[1:-1]}  # the last one at each x: what holds from there on
    at = {when: heights[round(120 + when * 680 / 9, 2)] for when in (0, 1, 7, 9)}
    assert low - high == 22
    # device 0: F0 at 0, F1 at 1, B0 ends at 7, B1 ends at 9
    assert at == {0: low - 11, 1: high, 7: low - 11, 9: low}


def test_until_shows_what_had_begun_and_what_is_held_then():
    sheet = with_memory(until=2.5)
    assert [box["hint"] for box in sheet.boxes] == [
        "0F0 on device 0: 0 to 1 units",
        "0F1 on device 0: 1 to 2 units",
        "1F0 on device 1: 1 to 2 units",
        "1F1 on device 1: 2 to 2.5 units",
    ]
    assert held(sheet) == ["holds 2, at most 2", "holds 2, at most 2"]
    assert held(with_memory(until=8)) == ["holds 1, at most 2", "holds 0, at most 2"]
    halves = with_memory(activation_size=0.5, until=1.5)  # a stage may be a part of a device
    assert held(halves) == ["holds 1, at most 1", "holds 0.5, at most 0.5"]
    assert [box["hint"] for box in with_memory(until=0).boxes] == ["0F0 on device 0: 0 to 0 units"]
    assert with_memory(until=99).boxes == with_memory().boxes


def test_the_axis_can_reach_further_than_the_events():
    few, more = (with_memory(Timeline(RUN.events[:n], 2), horizon=9) for n in (2, 5))
    assert few.words[-1] == more.words[-1] == "9 units"
    assert few.boxes == more.boxes[:2]
    assert with_memory(horizon=4).words[-1] == "9 units"


def test_a_narrow_box_keeps_the_letter_of_its_kind():
    run = simulate(gpipe_schedule(1, 20), Costs(1, 2))  # 60 units on 680 pixels
    labels = [box["label"] for box in with_memory(run).boxes]
    assert labels == ["F"] * 20 + [f"0B{index}" for index in range(20)]
