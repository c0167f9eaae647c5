"""The picture of a mesh has a box per rank and a line for everything that crosses."""

import xml.etree.ElementTree as ElementTree

import pytest
from sheets import beside_the_sheet

from mpcourse.figures import mesh_picture

NAMESPACE = "{http://www.w3.org/2000/svg}"
GREY = "#dddddd"


def parse(*arguments) -> ElementTree.Element:
    return ElementTree.fromstring(mesh_picture(*arguments).svg)


def boxes(root: ElementTree.Element) -> dict[str, str]:
    """What a box says -> its colour."""
    groups = list(root.iter(f"{NAMESPACE}g"))
    fills = [group.find(f"{NAMESPACE}rect").attrib["fill"] for group in groups]
    return dict(zip([g.findtext(f"{NAMESPACE}text") for g in groups], fills, strict=True))


def dashed(root: ElementTree.Element) -> list[str]:
    """The colours of the dashed lines."""
    paths = root.iter(f"{NAMESPACE}path")
    return [path.attrib["stroke"] for path in paths if "stroke-dasharray" in path.attrib]


def words(root: ElementTree.Element) -> list[str]:
    return [element.text for element in root.iter(f"{NAMESPACE}text")]


def test_a_row_per_pipeline_and_ranks_numbered_along_it():
    root = parse(2, 4)
    assert list(boxes(root)) == [f"rank {rank}" for rank in range(8)]
    assert len(set(boxes(root).values())) == 4  # a colour per stage
    assert len(dashed(root)) == 4
    assert GREY not in [*boxes(root).values(), *dashed(root)]
    assert {"2 x 4 = 8 ranks", "pipeline 1", "stage 3"} <= set(words(root))


def test_the_partners_of_one_rank_stand_out():
    root = parse(2, 4, 5)
    marked = [name for name, colour in boxes(root).items() if colour != GREY]
    assert marked == ["rank 1", "rank 4", "rank 5 *", "rank 6"]
    assert [colour != GREY for colour in dashed(root)] == [False, True, False, False]
    last = "rank 5: stage 1 of pipeline 1, activations to and from 4 and 6, averages with 1"
    assert words(root)[-1] == last
    assert last in root.findtext(f"{NAMESPACE}desc")


@pytest.mark.parametrize(
    ("mesh", "line"),
    [
        ((1, 3, 0), "rank 0: stage 0 of pipeline 0, activations to and from 1"),
        ((2, 2, 3), "rank 3: stage 1 of pipeline 1, activations to and from 2, averages with 1"),
        ((3, 1, 1), "rank 1: stage 0 of pipeline 1, averages with 0, 2"),
        ((1, 1, 0), "rank 0: stage 0 of pipeline 0"),
    ],
)
def test_ends_of_a_row_and_columns_of_one_have_no_partner_there(mesh, line):
    assert words(parse(*mesh))[-1] == line


def test_a_rank_that_is_not_there_is_said_and_nobody_stands_out():
    root = parse(2, 2, 9)
    assert "2 x 2 = 4 ranks; there is no rank 9" in words(root)
    assert set(boxes(root).values()) == {GREY}


@pytest.mark.parametrize("mesh", [(1, 1), (4, 4, 15), (8, 1, 3), (1, 8)])
def test_every_mesh_fits_on_the_sheet(mesh):
    assert beside_the_sheet(parse(*mesh)) == []


def test_a_mesh_without_ranks_is_refused():
    with pytest.raises(ValueError, match="pipeline is a whole number from 1; got 0"):
        mesh_picture(2, 0)
