"""Figures of training show every number they are given, say where it is from, refuse misfits."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from matplotlib.figure import Figure

from mpcourse.figures import plot_digits, plot_gaps, seeds_picture

NAMESPACE = "{http://www.w3.org/2000/svg}"
WORDS = {"over": "step", "of": "the losses"}
ABOUT = {"machine": "a laptop, torch 2.9", "date": "2026-01-02"}


def new_axes():
    return Figure().add_subplot()


def test_gaps_are_lines_on_a_logarithmic_axis_and_a_gap_of_0_is_left_out():
    ax = plot_gaps([1, 2, 4], {"a": [1e-3, 0.0, 1e-5], "b": [1, 2, 3]}, new_axes(), **WORDS)
    first, second = ax.get_lines()
    assert first.get_ydata()[0] == 1e-3
    assert math.isnan(first.get_ydata()[1])
    assert list(second.get_ydata()) == [1, 2, 3]
    assert list(second.get_xdata()) == [1, 2, 4]
    assert (ax.get_yscale(), ax.get_title()) == ("log", "measured here")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "difference of the losses")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def test_few_places_get_markers_and_ticks_and_many_do_not():
    few = plot_gaps([1, 2, 4], {"a": [1, 1, 1]}, new_axes(), **WORDS)
    assert [text.get_text() for text in few.get_xticklabels()] == ["1", "2", "4"]
    assert few.get_lines()[0].get_marker() == "o"
    many = plot_gaps(range(99), {"a": torch.ones(99)}, new_axes(), **WORDS)
    assert many.get_lines()[0].get_marker() == "None"
    assert many.get_xscale() == "linear"


def test_a_line_that_does_not_fit_and_an_unknown_label_are_refused():
    with pytest.raises(ValueError, match="a has 1 values; there are 2 places"):
        plot_gaps([1, 2], {"a": [1]}, new_axes(), **WORDS)
    with pytest.raises(ValueError, match="label is one of measured here"):
        plot_gaps([1], {"a": [1]}, new_axes(), **WORDS, label="guessed")


def test_digits_stand_below_their_words_and_axes_left_over_are_blank():
    grid = Figure().subplots(2, 2)
    plot_digits(torch.rand(3, 1, 28, 28), ["7, read as 1", "b", "c"], grid.flat)
    axes = list(grid.flat)
    assert [ax.get_title() for ax in axes] == ["7, read as 1", "b", "c", ""]
    assert [len(ax.get_images()) for ax in axes] == [1, 1, 1, 0]
    assert not any(ax.axison for ax in axes)


def test_digits_without_words_or_axes_are_refused():
    grid = Figure().subplots(1, 2)
    with pytest.raises(ValueError, match="got 2 images, 1 words, 2 axes"):
        plot_digits(torch.rand(2, 28, 28), ["a"], grid.flat)
    with pytest.raises(ValueError, match="got 3 images, 3 words, 2 axes"):
        plot_digits(torch.rand(3, 28, 28), ["a", "b", "c"], grid)


def test_every_seed_is_a_labelled_box_at_its_accuracy():
    shown = seeds_picture({"plain": [0.92, 0.94], "shifted": [0.96, 0.98]}, ABOUT)
    root = ElementTree.fromstring(shown.svg)
    groups = root.findall(f"{NAMESPACE}g")
    boxes = {
        group.find(f"{NAMESPACE}title").text: group.find(f"{NAMESPACE}rect") for group in groups
    }
    x = {hint: float(box.attrib["x"]) for hint, box in boxes.items() if hint.startswith("seed ")}
    assert list(x) == ["seed 0: 92.0%", "seed 1: 94.0%", "seed 0: 96.0%", "seed 1: 98.0%"]
    steps = [b - a for a, b in zip(x.values(), list(x.values())[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.05)
    assert steps[0] > 10
    width = float(root.attrib["width"])
    assert all(0 < float(box.attrib["x"]) < width for box in boxes.values())


def test_the_picture_says_mean_spread_machine_and_date():
    shown = seeds_picture({"plain": [0.92, 0.94]}, ABOUT)
    root = ElementTree.fromstring(shown.svg)
    words = [element.text for element in root.findall(f"{NAMESPACE}text")]
    assert "measured on a laptop, torch 2.9, 2026-01-02 (a recording)" in words
    assert "2 seeds: mean 93.00%, spread 1.41%" in words
    spoken = root.find(f"{NAMESPACE}desc").text
    assert spoken.startswith("plain, 2 seeds: mean 93.00%, spread 1.41%; the seeds")
    assert spoken.endswith("the seeds: 92.0%, 94.0%")


def test_one_seed_alone_is_refused():
    with pytest.raises(ValueError, match="the accuracies of two seeds or more"):
        seeds_picture({"a": [0.9, 0.8], "b": [0.9]}, ABOUT)


def test_a_long_name_of_a_recipe_has_room():
    name = "shifted at random, forty epochs"
    root = ElementTree.fromstring(seeds_picture({name: [0.9, 0.8]}, ABOUT).svg)
    (label,) = (e for e in root.findall(f"{NAMESPACE}text") if e.text == name)
    assert label.attrib["text-anchor"] == "end"
    assert float(label.attrib["x"]) > 8 * len(name)


def test_seeds_with_the_same_accuracy_do_not_hide_each_other():
    shown = seeds_picture({"a": [0.9, 0.95, 0.9, 0.9]}, ABOUT)
    groups = ElementTree.fromstring(shown.svg).findall(f"{NAMESPACE}g")
    rects = [g.find(f"{NAMESPACE}rect").attrib for g in groups[1:]]  # the first is the band
    corners = [(float(rect["x"]), float(rect["y"])) for rect in rects]
    assert len(corners) == 4
    for index, (x, y) in enumerate(corners):
        assert all(abs(x - u) >= 12 or abs(y - v) >= 12 for u, v in corners[:index])
