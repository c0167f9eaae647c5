"""Pictures of batches, ranks, transfers, bytes and seeds show what they are given."""

import re

import pytest
import torch
from sheets import Sheet, points

from mpcourse.figures import (
    LayoutTime,
    attention_picture,
    byte_bars,
    layouts_picture,
    mlp_cut_picture,
    places_picture,
    scatter_picture,
    token_cut_picture,
    transfers_picture,
)
from mpcourse.splitting.placement import Transfer
from mpcourse.transformer import ROOM
from mpcourse.widgets import layout_view
from mpcourse.widgets.layouts import MODELS


def test_every_row_of_the_grid_has_the_letter_and_colour_of_its_device():
    boxes = Sheet(scatter_picture([3, 3, 1], 3)).boxes
    cells, legend = boxes[:-3], boxes[-3:]
    assert [cell["label"] for cell in cells] == list("AAAA" * 3 + "BBBB" * 3 + "CCCC")
    assert [cell["hint"] for cell in cells[:4]] == [
        f"row 0, column {c}: device A" for c in range(4)
    ]
    assert [box["label"] for box in legend] == ["A", "B", "C"]
    for box in legend:
        assert {c["fill"] for c in cells if c["label"] == box["label"]} == {box["fill"]}
    assert len({box["fill"] for box in legend}) == 3


def test_a_scattered_batch_is_said_in_words():
    sheet = Sheet(scatter_picture([2, 1], 3, dim=1))
    assert sheet.title == "3 columns scattered over 3 devices"
    assert sheet.words[1:] == ["2 columns: columns 0 to 1", "1 column: column 2", "nothing"]
    assert "B: 1 column: column 2; C: nothing" in sheet.description


def test_devices_without_a_chunk_are_drawn_empty_but_lettered():
    legend = Sheet(scatter_picture([2, 2, 1], 5)).boxes[-5:]
    assert [box["label"] for box in legend] == list("ABCDE")
    assert [box["fill"] == "#ffffff" for box in legend] == [False] * 3 + [True] * 2


def slices(ranks: int) -> dict[str, tuple[str, float]]:
    """What the pointer reads -> letter and area."""
    boxes = Sheet(mlp_cut_picture(ranks)).boxes
    return {b["hint"]: (b["label"], float(b["width"]) * float(b["height"])) for b in boxes}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_rank_holds_its_share_of_both_matrices_and_a_whole_addend(ranks: int):
    found = slices(ranks)
    assert len(found) == 2 + 4 * ranks
    y = found["y: whole, on every rank"][1]
    columns = slices(1)["up: columns of rank 0"][1] / ranks
    for rank in range(ranks):
        letter = "ABCD"[rank]
        part = (letter, pytest.approx(columns, rel=1e-2))
        assert found[f"up: columns of rank {rank}"] == part
        assert found[f"down: rows of rank {rank}"] == part
        assert found[f"GELU: columns of rank {rank}"] == part
        assert found[f"addends: addends of rank {rank}"] == (letter, y)
    said = Sheet(mlp_cut_picture(ranks)).description
    assert ("all-reduce" in said, "nothing is sent" in said) == (ranks > 1, ranks == 1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_between_cut_layers_a_rank_holds_its_tokens_and_inside_them_its_numbers(ranks: int):
    sheet = Sheet(token_cut_picture(ranks))
    held = [(b["label"], float(b["width"]), float(b["height"])) for b in sheet.boxes if b["label"]]
    assert len(held) == 5 * ranks
    tokens, numbers = (92, pytest.approx(88 / ranks)), (pytest.approx(92 / ranks), 88)
    for column, size in enumerate([tokens, numbers, tokens, numbers, tokens]):
        for rank in range(ranks):
            assert held[column * ranks + rank] == ("ABCD"[rank], *size)
    assert "g: all-gather forward, reduce-scatter backward" in sheet.description
    assert "ḡ: reduce-scatter forward, all-gather backward" in sheet.description


def test_each_rank_of_a_mesh_stands_once_at_its_place():
    boxes = Sheet(places_picture(2, 3, 2)).boxes
    assert [box["label"] for box in boxes] == [f"{rank} {'AB'[rank % 2]}" for rank in range(12)]
    # read from left to right, then down: stage 0 is ranks 0 to 5, in rows of two
    places = {(float(b["y"]), float(b["x"])): int(b["label"].split()[0]) for b in boxes}
    order = [places[place] for place in sorted(places)]
    assert order == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]


def test_maps_show_who_looks_at_whom():
    weights = torch.tensor([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [1.0, 0.0]]])
    drawn = attention_picture(weights, "a<")
    assert drawn.svg.count("looks at &#x27;") == 2 * 3
    assert "&#x27;&lt;&#x27; looks at &#x27;a&#x27;: 25%" in drawn.svg
    assert "head 0 looks most at itself: 88%" in drawn.description
    assert "head 1 looks most 1 back: 100%" in drawn.description
    assert 'fill="rgb(0,114,178)"' in drawn.svg
    assert 'fill="rgb(255,255,255)"' in drawn.svg
    named = attention_picture(weights, "a<", ["near & far", "even"])
    assert ">near &amp; far</text>" in named.svg
    assert named.description.endswith("even looks most 1 back: 100%")


GO = Transfer("cuda:0", "cuda:1", (20, 10), 800, False)
BACK = Transfer("cuda:1", "cuda:0", (20, 10), 800, True)
IN = Transfer("cpu", "cuda:0", (20,), 160, False)
HELD = {"cuda:0": 440, "cuda:1": 220}


def crossing(*transfers: Transfer, held: dict = HELD, **options) -> Sheet:
    return Sheet(transfers_picture(transfers, held, label="simulated", **options))


def test_the_host_comes_first_and_every_device_has_a_column():
    assert [box["label"] for box in crossing(IN, GO).boxes] == ["cpu", "cuda:0", "cuda:1"]
    sheet = crossing(IN, held={"cuda:1": 1220})
    assert [box["label"] for box in sheet.boxes] == ["cpu", "cuda:0", "cuda:1"]
    assert {"no parameters", "1,220 bytes of parameters"} <= set(sheet.words)


def test_arrows_stand_in_order_and_point_to_where_the_tensor_went():
    sheet = crossing(IN, GO, BACK)
    assert sheet.words[-3:] == ["forward, 160 bytes", "forward, 800 bytes", "backward, 800 bytes"]
    shafts = [path.attrib for path in sheet.each("path") if "stroke-width" in path.attrib]
    heads = [path.attrib["d"] for path in sheet.each("path") if path.attrib["d"].endswith("Z")]
    starts = [points(shaft["d"])[0][0] for shaft in shafts]
    (tips, heights), backs = zip(*[points(h)[0] for h in heads], strict=True), []
    assert list(heights) == sorted(heights)
    assert [start < tip for start, tip in zip(starts, tips, strict=True)] == [True, True, False]
    assert starts[1] == tips[2]
    backs = [points(head)[1][0] for head in heads]
    for back, start, tip in zip(backs, starts, tips, strict=True):
        assert min(start, tip) < back < max(start, tip)
    assert ["stroke-dasharray" in shaft for shaft in shafts] == [False, False, True]


@pytest.mark.parametrize(
    ("transfers", "options", "widths"),
    [
        ([GO, IN], {}, [14, 14 / 5]),
        ([GO, IN], {"most": 1600}, [7, 14 / 10]),
        ([GO, IN], {"most": 80_000}, [1, 1]),  # still to be seen
        ([GO], {"most": 80}, [14]),
    ],
)
def test_an_arrow_is_as_wide_as_its_transfer_has_bytes(transfers, options, widths):
    paths = crossing(*transfers, **options).each("path")
    found = [float(p.attrib["stroke-width"]) for p in paths if "stroke-width" in p.attrib]
    assert found == pytest.approx(widths)


def test_transfers_are_said_in_words():
    sheet = crossing(GO, BACK, caption="one step")
    assert sheet.title == "2 transfers between 2 devices (simulated)"
    said = sheet.description
    assert all(part in said for part in ("cuda:0 has 440 bytes", str(GO), str(BACK)))
    assert sheet.words[0] == "simulated; one step"


BYTES = {
    "one": {"parameters": 8e9, "gradients": 12e9},
    "two": {"parameters": 2e9, "gradients": 0.0},
}
LAYOUTS = [
    LayoutTime("8 x 1 x 1", {"products": 3.0, "waiting": 1.0}, 90e9),
    LayoutTime("1 x 8 x 1", {"products": 3.0, "waiting": 3.0}, 20e9),
    LayoutTime("1 x 1 x 8", {"products": 5.0, "waiting": 0.0}, 80e9),
]


def test_bytes_are_drawn_to_scale_and_said():
    sheet = Sheet(byte_bars(BYTES, caption="a model"))
    assert sheet.description == (
        "computed; a model; one: parameters 8 GB, gradients 12 GB, together 20 GB; "
        "two: parameters 2 GB, gradients 0 GB, together 2 GB"
    )
    widths = [float(box["width"]) for box in sheet.boxes[2:]]
    assert widths == [224, 336, 56]  # 560 pixels are 20 GB; nothing is drawn for nothing
    assert "16 GB" in sheet.words
    assert not {"24 GB", "80 GB"} & set(sheet.words)  # beside the sheet


def layouts(memory: float = 80e9, band: float = 1.1) -> Sheet:
    return Sheet(layouts_picture(LAYOUTS, memory, band=band, caption="eight ranks"))


def test_layouts_within_the_error_of_the_fastest_that_fits_are_marked():
    same = "within the error"
    assert f"1 x 1 x 8 5 s, 80 GB: {same}" in layouts().description
    assert "8 x 1 x 1 4 s, 90 GB: does not fit" in layouts().description
    assert f"8 x 1 x 1 4 s, 90 GB: {same}" in layouts(90e9).description
    assert [layouts(90e9, b).description.count(same) for b in (1.0, 1.3, 1.5)] == [1, 2, 3]
    assert same not in layouts(10e9).description
    (shade,) = [p for p in layouts().each("path") if p.attrib["fill"] == "#dddddd"]
    assert shade.attrib["d"].startswith("M541.67 64.00L580.83 64.00")  # 5 and 5.5 of 6 s


def test_bars_are_as_long_as_their_seconds():
    widths = {box["hint"]: float(box["width"]) for box in layouts().boxes}
    seconds = {"products: 3 s": 3, "products: 5 s": 5, "waiting: 1 s": 1, "waiting: 3 s": 3}
    unit = widths["products: 3 s"] / 3
    for hint, length in seconds.items():
        assert widths[hint] == pytest.approx(length * unit, rel=1e-3)
    assert set(widths) == {*seconds, "P", "W"}  # nothing for what takes no time, and a legend


def test_layouts_that_fit_stand_above_those_that_do_not():
    said = Sheet(layout_view("39.1 billion", 2048, 64, "8 A100", 25)).description
    assert said.index("within the error") < said.index("does not fit")
    assert "simulated; 39.1 billion; 2048 x 2,048 tokens, 64 ranks" in said


def test_layouts_have_as_many_context_and_expert_ranks_as_asked_for():
    for letter, axis in (("c", "context"), ("e", "expert")):
        with_any, without, with_4 = (Sheet(layout_view(**{axis: n})).description for n in (0, 1, 4))
        assert re.search(rf" {letter} [2-9]", with_any)
        assert f" {letter} " in with_any.partition("GB: within the error")[0]  # of the fastest
        assert f" {letter} " not in without.partition("; shaded")[2]
        layouts = [line for line in with_4.split("; ") if " GB" in line]
        assert all(f" {letter} 4" in line for line in layouts)
        assert len(layouts) >= 10
    assert {"R: ring", "A: all-to-alls"} < set(Sheet(layout_view()).words)
    assert not {"R: ring", "A: all-to-alls"} & set(Sheet(layout_view(context=1, expert=1)).words)


def test_band_and_room_are_those_of_the_published_rows_whatever_the_model():
    for model, tokens in (
        ("39.1 billion", 2048),
        ("70 billion", 32768),
        (next(reversed(MODELS)), 8192),
    ):
        said = Sheet(layout_view(model, tokens)).description
        assert "up to 41% slower" in said
        held = re.findall(r" ([0-9.]+) GB(: does not fit)?", said)
        assert max(float(size) for size, over in held if not over) <= ROOM * 80
        assert min(float(size) for size, over in held if over) > ROOM * 80 - 1
    slower = Sheet(layout_view()).description.count(" GB;")
    assert slower >= 1  # one that the band tells from the fastest


def test_a_model_without_experts_has_no_expert_ranks():
    assert layout_view("70 billion", expert=4).title == "No layout"
    assert "none comes out even" in layout_view("70 billion", expert=4).description
    assert ", e " not in layout_view("70 billion").description.partition("; shaded")[2]


OTHERS = [LAYOUTS[0], LayoutTime("b", {"waiting": 1.0}, 0)]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: scatter_picture([1] * 3, 2), r"2 devices take .* of 1 or more; got \[1, 1, 1\]"),
        (lambda: scatter_picture([2, 0], 2), r"of 1 or more; got \[2, 0\]"),
        (lambda: scatter_picture([2], 2, dim=2), r"dim is 0 \(rows\) or 1 \(columns\); got 2"),
        (lambda: mlp_cut_picture(0), "ranks is a whole number from 1; got 0"),
        (lambda: token_cut_picture(0), "ranks is a whole number from 1; got 0"),
        (lambda: places_picture(2, 2, 0), "tensor is a whole number from 1; got 0"),
        (lambda: attention_picture(torch.eye(2)[None], "abc"), "3 characters for 2 rows"),
        (lambda: byte_bars({}, caption=""), "there has to be a bar"),
        (lambda: layouts_picture(OTHERS, 1.0, band=1.0, caption=""), "all have the same purposes"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message: str):
    with pytest.raises(ValueError, match=message):
        draw()
