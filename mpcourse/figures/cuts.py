"""Curves over the cuts of a model: what lies before each, and what crosses it.

Page `resnet50_on_two_devices`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpcourse.figures.marks import MARKERS, check_label, device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_cuts(
    names: Sequence[str],
    shares: Mapping[str, Sequence[float]],
    crossing: Sequence[int],
    axes: Sequence["Axes"],
    *,
    label: str = "measured here",
) -> Sequence["Axes"]:
    """Plot over all cuts which share the first device gets, and below it what crosses the cut.

    Args:
        names: Of each cut: the block that it comes after.
        shares: Name of a curve -> share of the whole before each cut, from 0 to 1.
        crossing: Bytes per sample that each cut sends forward.
        axes: Two matplotlib axes, the upper and the lower one.
        label: "measured here", "simulated" or "quoted": where the times come from.

    Returns:
        `axes`.

    Raises:
        ValueError: A curve has more or fewer points than there are cuts, or `label` is another.
    """
    check_label(label)
    for name, values in {**shares, "crossing": crossing}.items():
        if len(values) != len(names):
            raise ValueError(f"{name} has {len(values)} values; there are {len(names)} cuts")
    upper, lower = axes
    places = range(len(names))
    for index, (name, values) in enumerate(shares.items()):
        style = {"color": device_colour(index), "marker": MARKERS[index % len(MARKERS)]}
        upper.plot(places, [100 * value for value in values], label=name, **style)
    upper.axhline(50, color="#888888", linestyle="--", linewidth=1)
    upper.set_ylim(0, 100)
    upper.set_ylabel("on the first device (%)")
    upper.set_title(f"times {label}; parameters and bytes counted")
    upper.legend()
    lower.bar(places, [size / 1024 for size in crossing], color=device_colour(2))
    lower.set_axisbelow(True)
    lower.set_ylabel("crossing (KiB per sample)")
    lower.set_xlabel("cut after")
    upper.set_xticks(list(places), [""] * len(names))
    lower.set_xticks(list(places), list(names), rotation=60, ha="right")
    for ax in axes:
        ax.set_xlim(-0.6, len(names) - 0.4)
        ax.grid(alpha=0.3)
    return axes
