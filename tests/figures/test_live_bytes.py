"""Bytes by purpose: every area and every part has its place, its letter and its colour."""

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from sheets import Sheet

from mpcourse.figures import byte_bars, plot_live, stages_picture
from mpcourse.figures.live_bytes import LIVE

HELD = {"weights, state, batch": 3e6}
STEP = [HELD | more for more in ({"activations": 2e6}, {"gradients of weights": 4e6})]
MOMENTS = [HELD, *STEP, *[HELD | {"scratch": 1e6}] * 100]


def test_areas_are_stacked_and_the_axis_ends_behind_the_peak():
    ax = plot_live(MOMENTS, Figure().add_subplot())
    areas = [area.get_paths()[0].vertices for area in ax.collections]
    assert [max(y for _, y in area) for area in areas] == [3, 5, 7, 7, 7]  # megabytes
    assert [to_hex(area.get_facecolor()[0]).upper() for area in ax.collections] == [*LIVE.values()]
    assert [line.get_xdata()[0] for line in ax.lines] == [2]
    assert ax.get_xlim() == (0, 2)  # 100 operations of an optimizer would hide the rest


def test_large_areas_have_their_letter_in_their_middle():
    ax = plot_live(MOMENTS, Figure().add_subplot())
    assert {words.get_text(): words.get_position() for words in ax.texts} == {
        "W": (1, 1.5),
        "A": (1, 4),
        "G": (2, 5),
    }


def test_each_stage_shares_out_one_kind_more():
    sheet = Sheet(stages_picture(2))
    kept = [
        "".join(box["label"] or "." for box in sheet.boxes[at : at + 12]) for at in (0, 12, 24, 36)
    ]
    assert kept == ["WWWWGGGGSSSS", "WWWWGGGGS..S", "WWWWG..GS..S", "W..WG..GS..S"]
    assert "stage 0: nothing shared out; stage 1: S shared out" in sheet.description
    assert not sheet.beside()


def test_a_purpose_has_one_colour_in_all_three_pictures():
    bars = Sheet(
        byte_bars({"a rank": dict.fromkeys(("weights", "gradients", "state"), 1)}, caption="")
    )
    stages = [box["fill"] for box in Sheet(stages_picture(1)).boxes[:3]]
    assert [box["fill"] for box in bars.boxes[:3]] == stages
    assert [LIVE["weights, state, batch"], LIVE["gradients of weights"]] == stages[:2]
