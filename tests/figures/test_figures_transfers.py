"""The picture of what crosses has a column per device and an arrow per transfer, in order."""

import xml.etree.ElementTree as ElementTree

import pytest
from sheets import beside_the_sheet

from mpcourse.figures import transfers_picture
from mpcourse.splitting.placement import Transfer

NAMESPACE = "{http://www.w3.org/2000/svg}"
GO = Transfer("cuda:0", "cuda:1", (20, 10), 800, False)
BACK = Transfer("cuda:1", "cuda:0", (20, 10), 800, True)
IN = Transfer("cpu", "cuda:0", (20,), 160, False)
HELD = {"cuda:0": 440, "cuda:1": 220}


def parse(*transfers: Transfer, held: dict | None = None, **options) -> ElementTree.Element:
    options = {"label": "simulated", **options}
    picture = transfers_picture(transfers, HELD if held is None else held, **options)
    return ElementTree.fromstring(picture.svg)


def words(root: ElementTree.Element) -> list[str]:
    return [element.text for element in root.iter(f"{NAMESPACE}text")]


def test_the_host_comes_first_and_every_device_has_a_lettered_column():
    boxes = [group.findtext(f"{NAMESPACE}text") for group in parse(IN, GO).iter(f"{NAMESPACE}g")]
    assert boxes == ["cpu", "cuda:0", "cuda:1"]


def test_devices_without_transfers_are_drawn_and_without_parameters_say_so():
    found = words(parse(IN, held={"cuda:1": 1220}))
    assert found[0] == "simulated"
    assert {"cuda:0", "no parameters", "1,220 bytes of parameters"} <= set(found)


def test_arrows_stand_in_order_and_point_to_where_the_tensor_went():
    root = parse(IN, GO, BACK)
    assert words(root)[-3:] == ["forward, 160 bytes", "forward, 800 bytes", "backward, 800 bytes"]
    shafts = [p for p in root.iter(f"{NAMESPACE}path") if "stroke-width" in p.attrib]
    heads = [p.attrib["d"] for p in root.iter(f"{NAMESPACE}path") if p.attrib["d"].endswith("Z")]
    starts = [float(p.attrib["d"][1:].split()[0]) for p in shafts]
    tips, heights = zip(*[map(float, h[1 : h.index("L")].split()) for h in heads], strict=True)
    assert list(heights) == sorted(heights)
    assert [start < tip for start, tip in zip(starts, tips, strict=True)] == [True, True, False]
    assert starts[1] == tips[2]
    backs = [float(head.split("L")[1].split()[0]) for head in heads]
    for back, start, tip in zip(backs, starts, tips, strict=True):
        assert min(start, tip) < back < max(start, tip)
    assert ["stroke-dasharray" in p.attrib for p in shafts] == [False, False, True]


def widths(root: ElementTree.Element) -> list[float]:
    found = [p.attrib.get("stroke-width") for p in root.iter(f"{NAMESPACE}path")]
    return [float(width) for width in found if width]


def test_an_arrow_is_as_wide_as_its_transfer_has_bytes():
    assert widths(parse(GO, IN)) == [14, pytest.approx(14 / 5)]
    assert widths(parse(GO, IN, most=1600)) == [7, pytest.approx(14 / 10)]
    assert widths(parse(GO, IN, most=80_000)) == [1, 1]  # still to be seen
    assert widths(parse(GO, most=80)) == [14]


def test_the_picture_says_it_all_in_words():
    root = parse(GO, BACK, caption="one step")
    assert root.findtext(f"{NAMESPACE}title") == "2 transfers between 2 devices (simulated)"
    spoken = root.findtext(f"{NAMESPACE}desc")
    assert all(part in spoken for part in ("cuda:0 has 440 bytes", str(GO), str(BACK)))
    assert words(root)[0] == "simulated; one step"


@pytest.mark.parametrize("transfers", [(), (IN,), (IN, GO, BACK) * 4])
def test_pictures_of_any_length_fit_on_the_sheet(transfers):
    assert beside_the_sheet(parse(*transfers)) == []


def test_transfers_of_unknown_origin_are_refused():
    with pytest.raises(ValueError, match="label is one of measured here, simulated, quoted"):
        parse(GO, label="guessed")
