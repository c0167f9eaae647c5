"""Curves in matplotlib axes have every point, and say on their axes what they show."""

import math

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mpcourse.figures import plot_gaps, plot_over_sparsity, plot_over_steps
from mpcourse.figures.curves import MARKERS

ACCURACIES = {
    "magnitude": {0.5: (0.9, 0.01), 0.9: (0.8, 0.02)},
    "random": {0.5: (0.5, 0.1), 0.9: (0.1, 0.0)},
}
WORDS = {"over": "step", "of": "the losses"}


@pytest.fixture
def ax() -> Axes:
    figure = Figure()
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def legend(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def ticks(ax: Axes) -> list[str]:
    return [tick.get_text() for tick in ax.get_xticklabels()]


def axes_words(ax: Axes) -> tuple[str, str, str]:
    return ax.get_xlabel(), ax.get_ylabel(), ax.get_title()


def with_bars(ax: Axes) -> list:
    """The line through the middles of each name."""
    return [container.lines[0] for container in ax.containers]


def spreads(ax: Axes) -> list[tuple[float, float]]:
    """The bars of the first name."""
    [bars] = ax.containers[0].lines[2]
    return [(segment[0][1], segment[1][1]) for segment in bars.get_segments()]


def test_lines_differ_in_marker_and_colour(ax: Axes):
    names = [f"{n} devices" for n in range(len(MARKERS))]
    plot_over_sparsity({name: {0.5: (0.9, 0.0)} for name in names}, ax, of="accuracy")
    assert len({line.get_marker() for line in with_bars(ax)}) == len(names) == 6
    assert len({line.get_color() for line in with_bars(ax)}) == len(names)


def test_sparsities_run_by_the_weights_that_are_left(ax: Axes):
    plot_over_sparsity(ACCURACIES, ax, of="accuracy")
    first, second = with_bars(ax)
    assert list(first.get_xdata()) == pytest.approx([0.5, 0.1])
    assert list(first.get_ydata()) == [0.9, 0.8]
    assert list(second.get_ydata()) == [0.5, 0.1]
    assert spreads(ax) == [pytest.approx((0.89, 0.91)), pytest.approx((0.78, 0.82))]
    assert (ax.get_xscale(), ax.xaxis_inverted()) == ("log", True)
    assert axes_words(ax)[1:] == ("accuracy", "measured here")
    assert legend(ax) == ["magnitude", "random"]
    assert ticks(ax) == ["50%", "80%", "90%"]
    assert list(ax.get_xticks()) == pytest.approx([0.5, 0.2, 0.1])


def test_a_recording_says_where_and_when(ax: Axes):
    about = {"machine": "a laptop", "date": "2026-01-02"}
    plot_over_sparsity(ACCURACIES, ax, of="accuracy", about=about)
    assert ax.get_title() == "measured on a laptop,\n2026-01-02 (a recording)"


def test_every_step_is_drawn_under_its_name(ax: Axes):
    plot_over_steps({"a": [(0, 1.0), (5, 0.5)], "b": [(2, 3.0)]}, ax, of="zeros")
    assert [line.get_label() for line in ax.lines] == ["a", "b"]
    assert ax.lines[0].get_xydata().tolist() == [[0, 1.0], [5, 0.5]]
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()
    assert axes_words(ax)[1:] == ("zeros", "measured here")


def test_gaps_are_lines_on_a_logarithmic_axis_and_a_gap_of_0_is_left_out(ax: Axes):
    plot_gaps([1, 2, 4], {"a": [1e-3, 0.0, 1e-5], "b": [1, 2, 3]}, ax, **WORDS)
    first, second = ax.get_lines()
    assert first.get_ydata()[0] == 1e-3
    assert math.isnan(first.get_ydata()[1])
    assert list(second.get_ydata()) == [1, 2, 3]
    assert list(second.get_xdata()) == [1, 2, 4]
    assert ax.get_yscale() == "log"
    assert axes_words(ax) == ("step", "difference of the losses", "measured here")
    assert legend(ax) == ["a", "b"]


def test_few_places_get_markers_and_ticks_and_many_do_not():
    few, many = Figure().add_subplot(), Figure().add_subplot()
    plot_gaps([1, 2, 4], {"a": [1, 1, 1]}, few, **WORDS)
    plot_gaps(range(99), {"a": torch.ones(99)}, many, **WORDS)
    assert ticks(few) == ["1", "2", "4"]
    assert few.get_lines()[0].get_marker() == "o"
    assert many.get_lines()[0].get_marker() in ("", "None")
    assert many.get_xscale() == "linear"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plot_gaps([1, 2], {"a": [1]}, ax, **WORDS), "a has 1 values; there are 2 plac"),
        (lambda ax: plot_over_steps({"a": [(0, 1.0)], "b": []}, ax, of="x"), "without one: b"),
        (
            lambda ax: plot_over_sparsity({"a": {1.0: (0, 0)}}, ax, of="x"),
            r"0 to less than 1; a has \[1\.0\]",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(ax: Axes, draw, message: str):
    with pytest.raises(ValueError, match=message):
        draw(ax)
    assert not ax.lines
