"""Figures of pruning show every number they are given, and say where it is from."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from matplotlib.figure import Figure
from sheets import beside_the_sheet

from mpcourse.figures import SparsityStudy, plot_over_sparsity, sparsity_picture
from mpcourse.pruning import magnitude
from mpcourse.training.nets import lenet_300_100
from mpcourse.widgets import sparsity_study

NAMESPACE = "{http://www.w3.org/2000/svg}"
LINES = {
    "magnitude": {0.5: (0.9, 0.01), 0.9: (0.8, 0.02)},
    "random": {0.5: (0.5, 0.1), 0.9: (0.1, 0.0)},
}
STUDY = SparsityStudy(
    weights=100,
    reach=0.5,
    every=[10, 40, 30, 20],
    kept={0: [10, 40, 30, 20], 0.5: [10, 20, 10, 10], 0.9: [5, 0, 0, 5]},
    inputs={0: [4, 4, 4, 4], 0.5: [0, 1, 2, 4], 0.9: [0, 0, 0, 1]},
    outputs=4,
    accuracies={0: 0.95, 0.5: 0.9, 0.9: 0.6},
    random={0: 0.95, 0.5: 0.4, 0.9: 0.1},
    sizes={s: {"dense": 4000, "CSR": round(8000 * (1 - s))} for s in (0, 0.5, 0.9)},
)


# Lines over sparsity


def test_a_line_goes_from_few_zeros_to_many_by_the_weights_that_are_left():
    ax = plot_over_sparsity(LINES, Figure().add_subplot(), of="accuracy")
    first, second = (container.lines[0] for container in ax.containers)
    assert list(first.get_xdata()) == pytest.approx([0.5, 0.1])
    assert list(first.get_ydata()) == [0.9, 0.8]
    assert list(second.get_ydata()) == [0.5, 0.1]
    assert (ax.get_xscale(), ax.xaxis_inverted()) == ("log", True)
    assert (ax.get_ylabel(), ax.get_title()) == ("accuracy", "measured here")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["magnitude", "random"]


def test_the_bars_are_the_spread_to_each_side():
    ax = plot_over_sparsity(LINES, Figure().add_subplot(), of="accuracy")
    [bars] = ax.containers[0].lines[2]
    heights = [(segment[0][1], segment[1][1]) for segment in bars.get_segments()]
    assert heights == [pytest.approx((0.89, 0.91)), pytest.approx((0.78, 0.82))]


def test_ticks_are_sparsities_within_the_lines():
    ax = plot_over_sparsity(LINES, Figure().add_subplot(), of="accuracy")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["50%", "80%", "90%"]
    assert list(ax.get_xticks()) == pytest.approx([0.5, 0.2, 0.1])


def test_a_recording_says_where_and_when():
    about = {"machine": "a laptop", "date": "2026-01-02"}
    ax = plot_over_sparsity(LINES, Figure().add_subplot(), of="accuracy", about=about)
    assert ax.get_title() == "measured on a laptop,\n2026-01-02 (a recording)"


def test_everything_pruned_has_no_place_and_labels_are_three():
    with pytest.raises(ValueError, match=r"0 to less than 1; a has \[1\.0\]"):
        plot_over_sparsity({"a": {1.0: (0, 0)}}, Figure().add_subplot(), of="x")
    with pytest.raises(ValueError, match="label is one of measured here"):
        plot_over_sparsity(LINES, Figure().add_subplot(), of="x", label="guessed")


# A net at one sparsity


def drawn(sparsity: float) -> ElementTree.Element:
    return ElementTree.fromstring(sparsity_picture(STUDY, sparsity).svg)


def hints(root: ElementTree.Element) -> list[str]:
    return [group.find(f"{NAMESPACE}title").text for group in root.findall(f"{NAMESPACE}g")]


def test_the_headline_has_sparsity_and_both_accuracies():
    texts = [element.text for element in drawn(0.5).findall(f"{NAMESPACE}text")]
    assert texts[0] == (
        "measured here; 50% of 100 weights are zero: 90.0% of the test digits right "
        "(40.0% with random ones)"
    )


def test_all_is_said_in_words():
    spoken = drawn(0.5).find(f"{NAMESPACE}desc").text
    assert "50 of the 100 weights in the histogram are kept" in spoken
    assert "1 of 4 pixels are not read, the most read has 4 weights" in spoken
    assert "bytes: dense 4,000, CSR 4,000" in spoken
    assert spoken.endswith("accuracy by sparsity: 0%: 95.0%, 50%: 90.0%, 90%: 60.0%")


def test_pixels_of_the_same_shade_are_one_path_with_their_numbers():
    found = [hint for hint in hints(drawn(0.5)) if "weights left" in hint]
    assert found == ["1 to 2 of 4 weights left", "4 to 4 of 4 weights left"]
    assert sum("weights left" in hint for hint in hints(drawn(0))) == 1


def test_bars_are_as_long_as_files_are_large_on_one_scale_for_all_sparsities():
    def width(root: ElementTree.Element, name: str) -> float:
        groups = root.findall(f"{NAMESPACE}g")
        [bar] = [g for g in groups if g.find(f"{NAMESPACE}title").text.startswith(f"{name}: ")]
        return float(bar.find(f"{NAMESPACE}rect").attrib["width"])

    assert width(drawn(0), "CSR") == pytest.approx(2 * width(drawn(0), "dense"), abs=0.1)
    assert width(drawn(0.5), "CSR") == pytest.approx(width(drawn(0), "dense"), abs=0.1)
    assert width(drawn(0.9), "dense") == width(drawn(0), "dense")


def test_every_point_of_both_curves_is_there_and_the_chosen_two_have_rings():
    root = drawn(0.9)
    found = hints(root)
    for name, values in (("this criterion", STUDY.accuracies), ("random weights", STUDY.random)):
        for sparsity, accuracy in values.items():
            assert f"{name}, {sparsity:.0%} zero: {accuracy:.1%}" in found
    rings = [group.find(f"{NAMESPACE}circle") for group in root.findall(f"{NAMESPACE}g")]
    heights = [float(ring.attrib["cy"]) for ring in rings if ring is not None]
    assert len(heights) == 2
    assert heights[0] < heights[1]  # the more accurate one is higher


def test_points_are_the_higher_the_more_accurate_and_the_ring_is_around_its_point():
    groups = drawn(0.5).findall(f"{NAMESPACE}g")
    y = {}
    for group in groups:
        hint = group.find(f"{NAMESPACE}title").text
        if hint.startswith("this criterion, "):
            corners = group.find(f"{NAMESPACE}path").attrib["d"].strip("MZ").split("L")
            y[hint] = sum(float(corner.split()[1]) for corner in corners) / len(corners)
    assert list(y.values()) == sorted(y.values())
    [ring, _] = [
        group.find(f"{NAMESPACE}circle")
        for group in groups
        if len(group) > 1 and group.find(f"{NAMESPACE}circle") is not None
    ]
    assert float(ring.attrib["cy"]) == pytest.approx(y["this criterion, 50% zero: 90.0%"], abs=0.02)


def test_everything_lies_on_the_sheet():
    assert beside_the_sheet(drawn(0)) == []


def test_an_unknown_sparsity_or_label_is_refused():
    with pytest.raises(ValueError, match=r"sparsities are 0, 0\.5, 0\.9; got 0\.7"):
        sparsity_picture(STUDY, 0.7)
    with pytest.raises(ValueError, match="label is one of"):
        sparsity_picture(STUDY, 0.5, label="guessed")


# The numbers behind it


def test_a_study_counts_weights_and_pixels_of_a_net():
    net = lenet_300_100()
    with torch.no_grad():
        net.fc1.weight[:, :28] = 0  # the first row of pixels
    accuracies = {0: 0.9, 0.9: 0.8}
    study = sparsity_study(net, magnitude(net), accuracies, accuracies, {0: {}, 0.9: {}})
    assert study.weights == 266_200
    assert (study.outputs, len(study.every)) == (300, 60)
    assert 0.998 * 266_200 < sum(study.every) <= 266_200  # the largest lie outside
    assert study.kept[0] == study.every
    assert sum(study.kept[0.9]) <= 26_620
    assert all(kept <= every for kept, every in zip(study.kept[0.9], study.every, strict=True))
    assert study.inputs[0] == [300] * 784
    assert study.inputs[0.9][:28] == [0] * 28
    assert sum(study.inputs[0.9]) < 26_620
    assert dataclasses.astuple(study)[6:8] == (accuracies, accuracies)
