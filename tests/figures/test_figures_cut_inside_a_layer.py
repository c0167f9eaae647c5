"""The picture of a cut MLP has a slice of each matrix for each rank, and says what is sent."""

import xml.etree.ElementTree as ElementTree

import pytest
from sheets import beside_the_sheet

from mpcourse.figures import mlp_cut_picture, places_picture

NAMESPACE = "{http://www.w3.org/2000/svg}"


def boxes(ranks: int) -> dict[str, tuple[str, float]]:
    """What the pointer reads -> letter and area."""
    found = {}
    for group in ElementTree.fromstring(mlp_cut_picture(ranks).svg).iter(f"{NAMESPACE}g"):
        size = group.find(f"{NAMESPACE}rect").attrib
        area = float(size["width"]) * float(size["height"])
        found[group.findtext(f"{NAMESPACE}title")] = (group.findtext(f"{NAMESPACE}text"), area)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_rank_holds_its_share_of_both_matrices_and_a_whole_addend(ranks: int):
    found = boxes(ranks)
    assert len(found) == 2 + 4 * ranks
    y = found["y: whole, on every rank"][1]
    for rank in range(ranks):
        letter, columns = found[f"W1: columns of rank {rank}"]
        assert letter == "ABCD"[rank]
        assert found[f"W2: rows of rank {rank}"] == (letter, pytest.approx(columns, rel=1e-2))
        assert found[f"bend: columns of rank {rank}"] == (letter, columns)
        assert found[f"parts: addends of rank {rank}"] == (letter, y)
    assert columns == pytest.approx(found["W1: columns of rank 0"][1])
    assert boxes(1)["W1: columns of rank 0"][1] == pytest.approx(ranks * columns, rel=1e-2)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_nothing_leaves_the_sheet_and_what_is_sent_is_said(ranks: int):
    picture = mlp_cut_picture(ranks)
    assert beside_the_sheet(ElementTree.fromstring(picture.svg)) == []
    assert ("all-reduce" in picture.svg) == (ranks > 1)
    assert ("nothing is sent" in picture.svg) == (ranks == 1)


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="ranks"):
        mlp_cut_picture(0)


def test_each_rank_of_a_mesh_stands_once_at_its_place():
    picture = places_picture(2, 3, 2)
    root = ElementTree.fromstring(picture.svg)
    found = {}
    for group in root.iter(f"{NAMESPACE}g"):
        box = group.find(f"{NAMESPACE}rect").attrib
        found[group.findtext(f"{NAMESPACE}text")] = (float(box["y"]), float(box["x"]))
    labels = [f"{rank} {'AB'[rank % 2]}" for rank in range(12)]
    assert list(found) == labels
    # read from left to right, then down: stage 0 is ranks 0 to 5, in rows of two
    order = [int(label.split()[0]) for label in sorted(found, key=found.get)]
    assert order == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert beside_the_sheet(root) == []
    with pytest.raises(ValueError, match="tensor"):
        places_picture(2, 2, 0)
