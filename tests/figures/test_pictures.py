"""Every picture lies on its sheet and can be read by those who do not see it, or see no colours."""

from collections.abc import Callable

import pytest
import torch
from sheets import SPARSITIES, Sheet

from mpcourse.figures import (
    SplitCurve,
    attention_picture,
    held_picture,
    memory_picture,
    mlp_cut_picture,
    places_picture,
    ring_picture,
    routes_picture,
    scatter_picture,
    sparsity_picture,
    split_curve_picture,
    split_picture,
    stages_picture,
    timeline_picture,
    token_cut_picture,
    transfers_picture,
)
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import one_f_one_b_schedule
from mpcourse.schedules.timeline import Event, Timeline
from mpcourse.splitting.placement import Transfer
from mpcourse.widgets import fit_view, layout_view
from mpcourse.widgets.layouts import HOSTS, MODELS


def pipeline(devices: int) -> tuple[Timeline, list[str]]:
    run = simulate(one_f_one_b_schedule(devices, 8), Costs(1, 2))
    return run, [f"GPU 0, share {n} of 16" for n in range(devices)]


LABEL = {"label": "quoted"}
ON_CORES = (pipeline(2)[0], ["CPU core 0", "CPU core 1"])
NOTHING = (Timeline((), 2), ["A", "B"])
BLINKS = (Timeline((Event(0, "x", 0.0, 0.0),), 1), ["A"])
CURVES = [
    SplitCurve({1: 0.8, 4: 0.45, 8: 0.6}, {1: 0.9, 4: 0.44}, 0.55),
    SplitCurve({4: 0.1}),
    SplitCurve({4: 0.0}),
    SplitCurve({4: 3.0, 240: 9.0}, {4: 20.0}),
    SplitCurve({1: 0.1, 4: 0.1}, whole_s=5.0),
    SplitCurve({1: 0.1, 4: 0.1}, whole_s=0.5, others={"two copies": 0.3, "all cores": 0.2}),
]
ALL_HELD = [[(0, 1)] * 2] * 2
CROSSES = [Transfer("cpu", "cuda:0", (20,), 160, False), Transfer("cuda:0", "cpu", (2,), 8, True)]
ROUTES = {"chosen": [["a1", "b0", "c1"], []], "sent": [["b0"], ["a1"]]}
HELD = {"before": [[["0a", "0b"]], [["1a", "1b"]]], "traded": [[["0a"], ["1a"]], [["0b"], ["1b"]]]}
CHUNKS = [([1], 1), ([1], 8), ([2] * 8, 8), ([3] * 10, 12), ([], 2)]
# What draws, its arguments, its options
PER_RANK = mlp_cut_picture, stages_picture, token_cut_picture
EXAMPLES: list[tuple[Callable, tuple, dict]] = [
    *((timeline_picture, run, LABEL) for run in (*map(pipeline, (1, 2, 12)), NOTHING, BLINKS)),
    *((memory_picture, run, LABEL | {"until": 5}) for run in (*map(pipeline, (1, 8)), NOTHING)),
    *((split_curve_picture, (curve,), {}) for curve in CURVES),
    *((split_picture, (curve, 4, *ON_CORES), {}) for curve in CURVES),
    *((scatter_picture, chunks, {"dim": dim}) for chunks in CHUNKS for dim in (0, 1)),
    *((places_picture, mesh, {}) for mesh in [(1, 1, 1), (2, 3, 2), (1, 4, 4)]),
    *((draw, (n,), {}) for draw in PER_RANK for n in (1, 2, 4)),
    (ring_picture, ([[[(0,), (1,)], [(0,), (0, 1)]], ALL_HELD], 1), {}),
    (routes_picture, (ROUTES,), {}),
    (held_picture, (HELD,), {}),
    (attention_picture, (torch.eye(3).expand(2, 3, 3), "a<b"), {}),
    *((transfers_picture, (CROSSES * n, {"cuda:0": 440}), LABEL) for n in (0, 1, 6)),
    *((sparsity_picture, (SPARSITIES, sparsity), {}) for sparsity in SPARSITIES.kept),
    (fit_view, ("Llama 2 7B",), {"ranks": 4, "stage": 3, "recompute": True}),
    (layout_view, (), {}),
    *((layout_view, (name,), {"hosts": hosts}) for name in MODELS for hosts in HOSTS),
    (layout_view, ("70 billion", 131072, 1024), {"between": 1}),
    (layout_view, ("39.1 billion",), {"expert": 8}),
]


@pytest.mark.parametrize(("draw", "given", "options"), EXAMPLES)
def test_all_lies_on_the_sheet_and_is_said_in_words(draw: Callable, given: tuple, options: dict):
    picture = draw(*given, **options)
    sheet = Sheet(picture)
    assert sheet.beside() == []
    assert (sheet.title, sheet.description) == (picture.title, picture.description)
    assert sheet.title
    assert sheet.description
    assert all(sheet.hints)
    places = [(box["x"], box["y"]) for box in sheet.boxes]
    assert len(set(places)) == len(places)
    # where boxes differ in colour, all have letters
    assert len({box["fill"] for box in sheet.boxes if not box["label"]}) <= 1


@pytest.mark.parametrize(
    ("draw", "given"),
    [
        (timeline_picture, pipeline(2)),
        (memory_picture, pipeline(2)),
        (transfers_picture, (CROSSES, {})),
    ],
)
def test_where_numbers_come_from_is_written_above_them(draw: Callable, given: tuple):
    for label in ("measured here", "simulated", "quoted"):
        sheet = Sheet(draw(*given, label=label))
        assert sheet.words[0].split(";")[0] == label
        assert f"({label})" in sheet.title
    for label in ("measured", "", "Simulated"):
        with pytest.raises(
            ValueError, match=f"one of measured here, simulated, quoted; got '{label}"
        ):
            draw(*given, label=label)


@pytest.mark.parametrize(
    ("draw", "given", "options"),
    [
        (timeline_picture, (), LABEL),
        (memory_picture, (), LABEL),
        (split_picture, (CURVES[0], 4), {}),
    ],
)
@pytest.mark.parametrize("names", [[], ["one"], ["one", "two", "three"]])
def test_every_device_needs_a_name(draw: Callable, given: tuple, options: dict, names: list[str]):
    order = (*given, pipeline(2)[0], names)
    with pytest.raises(ValueError, match=f"2 devices need names; got {len(names)}"):
        draw(*order, **options)


def test_a_row_that_is_gone_gets_0_and_one_that_changes_ranks_has_a_thick_line():
    sheet = Sheet(routes_picture(ROUTES))
    assert [box["label"] for box in sheet.boxes][-3:] == ["a1", "b0", "c: 0"]
    lines = [path.attrib for path in sheet.each("path")]
    assert [line["stroke-width"] for line in lines] == ["1", "3", "3", "1", "2"]
    assert ["stroke-dasharray" in line for line in lines] == [False] * 4 + [True]
    assert sheet.description.startswith("chosen: rank 0 a1 b0 c1; rank 1 . sent: rank 0 b0")


def test_what_ranks_hold_has_the_colour_of_its_first_owner():
    sheet = Sheet(held_picture(HELD))
    assert [box["label"] for box in sheet.boxes] == ["0a", "0b", "1a", "1b", "0a", "1a", "0b", "1b"]
    first, second = (sheet.boxes[place]["fill"] for place in (0, 2))
    assert first != second
    assert [box["fill"] == first for box in sheet.boxes[4:]] == [True, False, True, False]
    assert "traded, rank 1: 0b, 1b" in sheet.description
    for wrong in ([[["0a"]], [["0a"]]], [[["0a"]], [["1a"]]]):
        with pytest.raises(ValueError, match="each part has one owner"):
            held_picture({"before": wrong, "after": [[["2a"]], [["0a"]]]})
