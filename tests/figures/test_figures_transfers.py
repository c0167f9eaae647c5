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
    shafts = [p for p in root.iter(f"{NAMESPACE}path") if p.attrib.get("stroke-width") == "2"]
    ends = [[float(x) for x in p.attrib["d"][1:].replace("H", " ").split()] for p in shafts]
    assert [y for _, y, _ in ends] == sorted(y for _, y, _ in ends)
    assert [start < end for start, _, end in ends] == [True, True, False]
    assert ends[1][0] == ends[2][2]
    heads = [p.attrib["d"] for p in root.iter(f"{NAMESPACE}path") if p.attrib["d"].endswith("Z")]
    backs = [float(head.split("L")[1].split()[0]) for head in heads]
    assert all(min(a, b) < x < max(a, b) for x, (a, _, b) in zip(backs, ends, strict=True))
    assert ["stroke-dasharray" in p.attrib for p in shafts] == [False, False, True]


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
