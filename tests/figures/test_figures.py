"""Figures turn data into pictures that are complete in words, and refuse what they cannot draw."""

import io
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mpcourse.figures import (
    LABELS,
    MARKERS,
    device_colour,
    device_letter,
    plot_times,
    scatter_picture,
    svg,
    timeline_picture,
)
from mpcourse.schedules.actions import Action
from mpcourse.schedules.timeline import Event, Timeline

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "{http://www.w3.org/2000/svg}"


def parse(picture: svg.Picture) -> ElementTree.Element:
    return ElementTree.fromstring(picture.svg)


def spoken(picture: svg.Picture) -> tuple[str, str]:
    """Title and description, as a screen reader reads them."""
    root = parse(picture)
    return root.find(f"{NAMESPACE}title").text, root.find(f"{NAMESPACE}desc").text


def boxes(picture: svg.Picture) -> list[dict[str, str]]:
    """The coloured boxes: label, hint, fill and place."""
    return [
        {
            "hint": group.find(f"{NAMESPACE}title").text,
            "label": group.findtext(f"{NAMESPACE}text", default=""),
            **group.find(f"{NAMESPACE}rect").attrib,
        }
        for group in parse(picture).findall(f"{NAMESPACE}g")
    ]


def words(picture: svg.Picture) -> list[str]:
    """The words beside the boxes."""
    return [element.text for element in parse(picture).findall(f"{NAMESPACE}text")]


def fits(picture: svg.Picture) -> bool:
    """Whether all boxes and all beginnings of words lie on the sheet."""
    root = parse(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    places = [(float(e.attrib["x"]), float(e.attrib["y"])) for e in root.iter() if "x" in e.attrib]
    return all(0 <= x <= width and 0 <= y <= height for x, y in places)


# Devices


def test_the_first_eight_devices_have_letters_and_colours_of_their_own():
    assert [device_letter(index) for index in (0, 1, 7, 25)] == ["A", "B", "H", "Z"]
    assert len({device_letter(index) for index in range(26)}) == 26
    assert len({device_colour(index) for index in range(8)}) == 8


def test_there_is_a_letter_and_a_colour_for_any_number_of_devices():
    assert device_letter(26) == "A"
    assert device_colour(8) == device_colour(0)


# A batch, scattered


def test_every_row_of_the_grid_has_the_letter_and_colour_of_its_device():
    picture = scatter_picture([3, 3, 1], 3)
    cells, legend = boxes(picture)[:-3], boxes(picture)[-3:]
    assert [cell["label"] for cell in cells] == list("AAAA" * 3 + "BBBB" * 3 + "CCCC")
    assert [cell["hint"] for cell in cells[:4]] == [
        f"row 0, column {c}: device A" for c in range(4)
    ]
    assert cells[-1]["hint"] == "row 6, column 3: device C"
    assert [box["label"] for box in legend] == ["A", "B", "C"]
    for box in legend:
        assert {c["fill"] for c in cells if c["label"] == box["label"]} == {box["fill"]}
    assert len({box["fill"] for box in legend}) == 3


def test_the_picture_of_a_batch_says_it_all_in_words():
    picture = scatter_picture([3, 3, 1], 3)
    assert spoken(picture) == (
        "7 rows scattered over 3 devices",
        "A: 3 rows: rows 0 to 2; B: 3 rows: rows 3 to 5; C: 1 row: row 6",
    )
    assert words(picture) == [
        "the batch: 7 rows, 4 columns",
        "3 rows: rows 0 to 2",
        "3 rows: rows 3 to 5",
        "1 row: row 6",
    ]
    assert repr(picture) == "<picture: 7 rows scattered over 3 devices>"


def test_with_dim_1_the_columns_are_cut():
    picture = scatter_picture([2, 1], 2, dim=1)
    assert spoken(picture) == (
        "3 columns scattered over 2 devices",
        "A: 2 columns: columns 0 to 1; B: 1 column: column 2",
    )
    assert words(picture)[0] == "the batch: 4 rows, 3 columns"
    assert [cell["label"] for cell in boxes(picture)[:-2]] == list("AAB" * 4)


def test_devices_without_a_chunk_are_drawn_empty_but_lettered():
    picture = scatter_picture([2, 2, 1], 5)
    legend = boxes(picture)[-5:]
    assert [box["label"] for box in legend] == list("ABCDE")
    assert [box["fill"] for box in legend[3:]] == ["#ffffff"] * 2
    assert "#ffffff" not in [box["fill"] for box in legend[:3]]
    assert spoken(picture)[1].endswith("C: 1 row: row 4; D: nothing; E: nothing")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("sizes", "devices"), [([1], 1), ([1], 8), ([2] * 8, 8), ([16], 1), ([3] * 10, 12), ([], 2)]
)
def test_batches_of_every_shape_fit_on_the_sheet(sizes: list[int], devices: int, dim: int):
    picture = scatter_picture(sizes, devices, dim=dim)
    assert fits(picture)
    assert all(box["label"] for box in boxes(picture))
    assert len(boxes(picture)) == 4 * sum(sizes) + devices
    places = [(box["x"], box["y"]) for box in boxes(picture)]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1, 1, 1], 2), {}, r"2 devices take as many chunks, of 1 or more; got \[1, 1, 1\]"),
        (([2, 0], 2), {}, r"of 1 or more; got \[2, 0\]"),
        (([2, -1], 2), {}, r"of 1 or more; got \[2, -1\]"),
        (([2], 2), {"dim": 2}, r"dim is 0 \(rows\) or 1 \(columns\); got 2"),
        (([2], 2), {"dim": -1}, r"dim is 0 \(rows\) or 1 \(columns\); got -1"),
    ],
)
def test_a_batch_that_cannot_be_drawn_is_refused(arguments: tuple, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        scatter_picture(*arguments, **options)


# A timeline

NAMES = ["CPU core 0", "CPU core 1"]
EVENTS = (Event(0, "job 1", 0.0, 0.003), Event(1, "job 2", 0.001, 0.002))


def test_a_timeline_has_a_labelled_box_per_event_on_the_row_of_its_device():
    first, second = boxes(timeline_picture(Timeline(EVENTS, 2), NAMES, label="measured here"))
    assert (first["label"], second["label"]) == ("job 1", "job 2")
    assert first["hint"] == "job 1 on CPU core 0: 0 to 3 ms"
    assert second["hint"] == "job 2 on CPU core 1: 1 to 2 ms"
    assert first["fill"] == device_colour(0)
    assert second["fill"] == device_colour(1)
    assert float(first["width"]) == pytest.approx(3 * float(second["width"]), abs=0.05)
    start = float(first["x"]) + float(first["width"]) / 3
    assert float(second["x"]) == pytest.approx(start, abs=0.05)
    assert float(second["y"]) > float(first["y"]) + float(first["height"])


def test_a_timeline_says_it_all_in_words():
    picture = timeline_picture(Timeline(EVENTS, 2), NAMES, label="measured here")
    assert spoken(picture) == (
        "Timeline of 2 devices (measured here)",
        "CPU core 0 runs job 1 from 0 to 3 ms; CPU core 1 runs job 2 from 1 to 2 ms; "
        "33% of the devices' time is idle",
    )
    assert words(picture) == [
        "measured here; 33% of the devices' time is idle",
        *NAMES,
        *("0", "0.5", "1", "1.5", "2", "2.5", "3"),
        "3 ms",
    ]


def test_a_caption_of_its_own_replaces_the_idle_share():
    timeline = Timeline(EVENTS, 2)
    picture = timeline_picture(timeline, NAMES, label="measured here", caption="batch size 8 & 9")
    assert words(picture)[0] == "measured here; batch size 8 & 9"
    assert spoken(picture)[1].endswith("from 1 to 2 ms; batch size 8 & 9")
    assert "idle" not in picture.svg


def test_rows_that_are_no_devices_are_not_called_so():
    shown = {"label": "measured here", "caption": "", "row": "lane"}
    picture = timeline_picture(Timeline(EVENTS, 2), NAMES, **shown)
    assert spoken(picture)[0] == "Timeline of 2 lanes (measured here)"


def test_a_simulated_timeline_keeps_its_own_unit():
    timeline = Timeline((Event(0, "0F1", 0, 4),), 1)
    picture = timeline_picture(timeline, ["device A"], label="simulated", unit="units")
    assert boxes(picture)[0]["hint"] == "0F1 on device A: 0 to 4 units"
    assert words(picture)[-1] == "4 units"
    assert spoken(picture)[0] == "Timeline of 1 device (simulated)"
    assert "ms" not in picture.svg


def test_from_one_second_on_a_timeline_is_drawn_in_seconds():
    for seconds, end in [(0.999, "999 ms"), (1.0, "1 s"), (12.5, "12.5 s")]:
        timeline = Timeline((Event(0, "job", 0, seconds),), 1)
        picture = timeline_picture(timeline, ["a"], label="measured here")
        assert words(picture)[-1] == end
        assert boxes(picture)[0]["hint"] == f"job on a: 0 to {end}"


def test_a_pipeline_s_actions_are_coloured_by_kind_and_keep_their_letters():
    actions = [Action(0, "F", 0), Action(0, "F", 1), Action(0, "I", 0), Action(0, "W", 0)]
    events = [Event(0, action, n, n + 1) for n, action in enumerate([*actions, Action(0, "B", 1)])]
    found = boxes(timeline_picture(Timeline(tuple(events), 1), ["device A"], label="simulated"))
    assert [box["label"] for box in found] == ["0F0", "0F1", "0I0", "0W0", "0B1"]
    forward, again, *backwards = [box["fill"] for box in found]
    assert forward == again
    assert len({forward, *backwards}) == 4


def test_a_timeline_without_events_shows_its_devices():
    picture = timeline_picture(Timeline((), 2), NAMES, label="simulated")
    assert boxes(picture) == []
    assert words(picture)[:3] == ["simulated; 0% of the devices' time is idle", *NAMES]
    assert spoken(picture)[1] == "0% of the devices' time is idle"
    assert fits(picture)


@pytest.mark.parametrize("times", [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)])
def test_an_event_without_length_can_still_be_seen(times: tuple[float, float]):
    events = (Event(0, "job 1", 0.0, 2.0), Event(1, "blink", *times))
    picture = timeline_picture(Timeline(events, 2), NAMES, label="simulated")
    blink = boxes(picture)[1]
    assert float(blink["width"]) == 1
    assert blink["label"] == "blink"
    assert fits(picture)


def test_a_run_without_length_can_be_drawn():
    picture = timeline_picture(Timeline((Event(0, "x", 0.0, 0.0),), 1), ["a"], label="quoted")
    assert boxes(picture)[0]["hint"] == "x on a: 0 to 0 ms"
    assert fits(picture)


@pytest.mark.parametrize("devices", [1, 2, 12])
def test_timelines_of_any_number_of_devices_fit_on_the_sheet(devices: int):
    timeline = Timeline(tuple(Event(n, f"job {n}", n, n + 1) for n in range(devices)), devices)
    picture = timeline_picture(timeline, [f"device {n}" for n in range(devices)], label="simulated")
    assert fits(picture)
    assert len(boxes(picture)) == devices
    assert len({box["y"] for box in boxes(picture)}) == devices
    assert len({box["fill"] for box in boxes(picture)}) == min(devices, 8)


@pytest.mark.parametrize("name", ["A", "CPU core 0", "GPU 0, share 10 of 16"])
def test_the_names_of_devices_have_room(name: str):
    picture = timeline_picture(Timeline((), 1), [name], label="simulated")
    [shown] = [e for e in parse(picture).findall(f"{NAMESPACE}text") if e.text == name]
    assert shown.attrib["text-anchor"] == "end"
    half_a_letters_height = float(shown.attrib["font-size"]) / 2
    assert float(shown.attrib["x"]) - half_a_letters_height * len(name) >= 8


def test_names_and_actions_are_escaped():
    timeline = Timeline((Event(0, "<job>", 0, 1),), 1)
    picture = timeline_picture(timeline, ["a & b"], label="simulated", unit="<s>")
    assert boxes(picture)[0]["hint"] == "<job> on a & b: 0 to 1 <s>"
    assert boxes(picture)[0]["label"] == "<job>"


@pytest.mark.parametrize("label", LABELS)
def test_where_the_times_come_from_is_written_above_them(label: str):
    picture = timeline_picture(Timeline(EVENTS, 2), NAMES, label=label)
    assert words(picture)[0].startswith(f"{label}; ")
    assert f"({label})" in spoken(picture)[0]


@pytest.mark.parametrize("label", ["measured", "", "Simulated"])
def test_times_of_unknown_origin_are_refused(label: str):
    message = f"one of measured here, simulated, quoted; got {label!r}"
    with pytest.raises(ValueError, match=message):
        timeline_picture(Timeline(EVENTS, 2), NAMES, label=label)
    ax = Figure().add_subplot()
    with pytest.raises(ValueError, match=message):
        plot_times([8], {"one": [(1.0, 0.1)]}, ax, label=label)
    assert not ax.lines


@pytest.mark.parametrize("names", [[], ["one"], ["one", "two", "three"]])
def test_every_device_needs_a_name(names: list[str]):
    with pytest.raises(ValueError, match=f"2 devices need names; got {len(names)}"):
        timeline_picture(Timeline(EVENTS, 2), names, label="simulated")


# Times over batch sizes

SIZES = [8, 16, 32]
TIMES = {
    "one device": [(0.001, 0.0002), (0.002, 0.0004), (0.004, 0.0)],
    "two devices": [(0.003, 0.0), (0.003, 0.0), (0.0035, 0.001)],
}


@pytest.fixture
def ax() -> Axes:
    figure = Figure()
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def data_lines(ax: Axes) -> list:
    """The line through the medians of each name."""
    return [container.lines[0] for container in ax.containers]


def test_times_are_drawn_in_milliseconds_a_line_per_name(ax: Axes):
    assert plot_times(SIZES, TIMES, ax) is ax
    one, two = data_lines(ax)
    assert list(one.get_xdata()) == SIZES
    assert list(one.get_ydata()) == pytest.approx([1, 2, 4])
    assert list(two.get_ydata()) == pytest.approx([3, 3, 3.5])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(TIMES)


def test_the_bars_reach_half_the_spread_to_both_sides(ax: Axes):
    plot_times(SIZES, TIMES, ax)
    [bars] = ax.containers[0].lines[2]
    low, high = bars.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((0.9, 1.1))


def test_the_axes_say_what_they_show(ax: Axes):
    plot_times(SIZES, TIMES, ax, label="quoted")
    assert ax.get_xlabel() == "batch size (samples)"
    assert ax.get_ylabel() == "time of a forward pass (ms)"
    assert ax.get_title() == "quoted"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["8", "16", "32"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_lines_differ_in_marker_and_colour(ax: Axes):
    names = [f"{n} devices" for n in range(len(MARKERS))]
    plot_times([8], {name: [(0.001, 0.0)] for name in names}, ax)
    assert len({line.get_marker() for line in data_lines(ax)}) == len(names) == 6
    assert len({line.get_color() for line in data_lines(ax)}) == len(names)


def test_nothing_is_shown_and_pyplot_is_not_needed(ax: Axes, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it raises
        plot_times(SIZES, TIMES, ax)
    picture = io.BytesIO()
    ax.figure.savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")


def test_figures_can_be_imported_without_matplotlib():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['matplotlib'] = None\n"
        "from mpcourse.figures import scatter_picture; print(scatter_picture([1], 1))"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "<picture: 1 row scattered over 1 device>", result.stderr


def test_times_of_a_thousand_and_more_are_written_out():
    timeline = Timeline((Event(0, "job", 0, 2916.4),), 1)
    drawn = timeline_picture(timeline, ["A"], label="simulated", unit="M").svg
    assert "2,916 M" in drawn
    assert "job on A: 0 to 2,916 M" in drawn
    assert "e+03" not in drawn
