"""Curves, drawn into the matplotlib axes that are given and returned; no pyplot."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpcourse.figures.marks import device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED = "measured here"
MARKERS = "osD^vP"
STYLES = ("-", "--", "-.", ":")
FEW = 20  # up to so many places, each gets a marker and a tick
SPARSITIES = (0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)


def plot_cuts(
    names: Sequence[str],
    shares: Mapping[str, Sequence[float]],
    crossing: Sequence[int],
    axes: Sequence["Axes"],
) -> Sequence["Axes"]:
    """Plot over all cuts which share the first device gets, and below it what crosses the cut.

    Args:
        names: Of each cut: the block that it comes after.
        shares: Name of a curve -> share of the whole before each cut, from 0 to 1.
        crossing: Bytes per sample that each cut sends forward.
        axes: Two matplotlib axes, the upper and the lower one.

    Raises:
        ValueError: A curve has more or fewer points than there are cuts.
    """
    _check_lengths({**shares, "crossing": crossing}, len(names), "cuts")
    upper, lower = axes
    places = range(len(names))
    for index, (name, values) in enumerate(shares.items()):
        upper.plot(places, [100 * value for value in values], label=name, **_marked(index))
    upper.axhline(50, color="#888888", linestyle="--", linewidth=1)
    upper.set_ylim(0, 100)
    title = f"times {MEASURED}; parameters and bytes counted"
    _name_axes(upper, "", "on the first device (%)", title)
    upper.legend()
    lower.bar(places, [size / 1024 for size in crossing], color=device_colour(2))
    lower.set_axisbelow(True)
    _name_axes(lower, "cut behind", "crossing (KiB per sample)")
    upper.set_xticks(list(places), [""] * len(names))
    lower.set_xticks(list(places), list(names), rotation=60, ha="right")
    for ax in axes:
        ax.set_xlim(-0.6, len(names) - 0.4)
    return axes


def plot_gaps(
    places: Sequence[float],
    gaps: Mapping[str, Sequence[float]],
    ax: "Axes",
    *,
    over: str,
    of: str,
) -> "Axes":
    """Plot how far measured runs are apart, one line per name, on a logarithmic axis.

    Args:
        places: Where on the horizontal axis: steps, or numbers of micro-batches.
        gaps: Name -> one difference per place. One of 0 has no place on this axis: it is left out.
        ax: The matplotlib axes to draw into.
        over: What the places are, in words.
        of: What the differences are of, in words.

    Raises:
        ValueError: A line has more or fewer values than there are places.
    """
    _check_lengths(gaps, len(places), "places")
    few = len(places) <= FEW
    for index, (name, values) in enumerate(gaps.items()):
        # thinner and dashed in turn, so that a line on top of another hides nothing
        style = _marked(index) | {"linestyle": STYLES[index % 2], "markerfacecolor": "none"}
        style |= {"linewidth": max(2 - 0.5 * index, 1)} | ({} if few else {"marker": ""})
        ax.plot(places, [float(v) if v > 0 else math.nan for v in values], label=name, **style)
    if few:
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(places), [str(place) for place in places])
    ax.set_yscale("log")
    ax.set_ylim(1e-17, 10)  # the rounding of float64 is near 1e-16
    _name_axes(ax, over, f"difference of {of}", MEASURED)
    ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return ax


def plot_over_steps(
    lines: Mapping[str, Sequence[tuple[float, float]]], ax: "Axes", *, of: str
) -> "Axes":
    """Plot measured values over the steps of the optimizer, one line per name.

    Args:
        lines: Name -> (step, value) of each point, in order.
        ax: The matplotlib axes to draw into.
        of: What the values are, in words.

    Raises:
        ValueError: A line without a point.
    """
    if empty := [name for name, points in lines.items() if not points]:
        raise ValueError(f"each line needs a point or more; without one: {', '.join(empty)}")
    for index, (name, points) in enumerate(lines.items()):
        steps, values = zip(*points, strict=True)
        ax.plot(steps, values, label=name, **_dashed(index))
    _name_axes(ax, "steps of the optimizer", of, MEASURED, fontsize=9)
    ax.legend(fontsize=9)
    return ax


def plot_over_sparsity(
    lines: Mapping[str, Mapping[float, tuple[float, float]]],
    ax: "Axes",
    *,
    of: str,
    about: Mapping[str, str] | None = None,
) -> "Axes":
    """Plot values over sparsity, one line with its spread per name.

    The horizontal axis is logarithmic in the weights that are left: from 80% to 90% half of them
    go, as from 90% to 95%.

    Args:
        lines: Name -> sparsity (0 to less than 1) -> value and spread to each side.
        ax: The matplotlib axes to draw into.
        of: What the values are, in words, with their unit.
        about: Of a recording: "machine" and "date"; measured here when `None`.

    Raises:
        ValueError: A sparsity of 1 or outside the range.
    """
    for name, values in lines.items():
        if wrong := [sparsity for sparsity in values if not 0 <= sparsity < 1]:
            raise ValueError(f"sparsities are 0 to less than 1; {name} has {wrong}")
    for index, (name, values) in enumerate(lines.items()):
        # dashed in turn, so that a line on top of another hides nothing
        style = _marked(index) | {"linestyle": STYLES[index % 2], "markersize": 5, "capsize": 3}
        left = [1 - sparsity for sparsity in values]
        middles, spreads = zip(*values.values(), strict=True)
        ax.errorbar(left, middles, yerr=spreads, label=name, **style)
    places = [sparsity for values in lines.values() for sparsity in values]
    ticks = [tick for tick in SPARSITIES if min(places) <= tick <= max(places)]
    ax.set_xscale("log")
    ax.set_xticks([1 - tick for tick in ticks], [f"{tick:.0%}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.invert_xaxis()
    where = f"measured on {about['machine']},\n{about['date']} (a recording)" if about else MEASURED
    _name_axes(ax, "weights that are zero", of, where, fontsize=9)
    ax.legend(fontsize=9)
    return ax


def _marked(index: int) -> dict[str, Any]:
    return {"color": device_colour(index), "marker": MARKERS[index % len(MARKERS)]}


def _dashed(index: int) -> dict[str, Any]:
    return {"color": device_colour(index), "linestyle": STYLES[index % len(STYLES)]}


def _name_axes(ax: "Axes", across: str, up: str, title: str = "", **style: Any) -> None:
    ax.set_xlabel(across)
    ax.set_ylabel(up)
    ax.set_title(title, **style)
    ax.grid(alpha=0.3)


def _check_lengths(lines: Mapping[str, Sequence[float]], number: int, things: str) -> None:
    for name, values in lines.items():
        if len(values) != number:
            raise ValueError(f"{name} has {len(values)} values; there are {number} {things}")
