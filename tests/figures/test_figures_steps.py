"""Lines over steps show what they are given, and say where it comes from."""

import pytest
from matplotlib.figure import Figure

from mpcourse.figures import plot_over_steps


def test_every_point_is_drawn_under_its_name():
    ax = plot_over_steps(
        {"a": [(0, 1.0), (5, 0.5)], "b": [(2, 3.0)]}, Figure().subplots(), of="zeros"
    )
    assert [line.get_label() for line in ax.lines] == ["a", "b"]
    assert ax.lines[0].get_xydata().tolist() == [[0, 1.0], [5, 0.5]]
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()
    assert ax.get_ylabel() == "zeros"
    assert ax.get_title() == "measured here"


def test_bad_lines_and_labels_are_refused():
    ax = Figure().subplots()
    with pytest.raises(ValueError, match="without one: b"):
        plot_over_steps({"a": [(0, 1.0)], "b": []}, ax, of="zeros")
    with pytest.raises(ValueError, match="label is one of"):
        plot_over_steps({"a": [(0, 1.0)]}, ax, of="zeros", label="guessed")
    assert not ax.lines
