"""Lines over sparsity: accuracies with their spread, bytes, times.

Pages `pruning` and `sparse_training`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpcourse.figures.marks import MARKERS, check_label, device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)


def plot_over_sparsity(
    lines: Mapping[str, Mapping[float, tuple[float, float]]],
    ax: "Axes",
    *,
    of: str,
    label: str = "measured here",
    about: Mapping[str, str] | None = None,
) -> "Axes":
    """Plot values over sparsity, one line with its spread per name.

    The horizontal axis is logarithmic in the weights that are left: from 80% to 90% half of them
    go, as from 90% to 95%.

    Args:
        lines: Name -> sparsity (0 to less than 1) -> value and spread to each side.
        ax: The matplotlib axes to draw into.
        of: What the values are, in words, with their unit.
        label: "measured here", "simulated" or "quoted": where the values come from.
        about: Of a recording, in place of the label: "machine" and "date".

    Returns:
        `ax`.

    Raises:
        ValueError: A sparsity of 1 or outside the range, or `label` is another.
    """
    check_label(label)
    for name, values in lines.items():
        if wrong := [sparsity for sparsity in values if not 0 <= sparsity < 1]:
            raise ValueError(f"sparsities are 0 to less than 1; {name} has {wrong}")
    for index, (name, values) in enumerate(lines.items()):
        # thinner and dashed in turn, so that a line on top of another hides nothing
        style = {"color": device_colour(index), "linestyle": "-" if index % 2 == 0 else "--"}
        style |= {"marker": MARKERS[index % len(MARKERS)], "markersize": 5, "capsize": 3}
        left = [1 - sparsity for sparsity in values]
        middles, spreads = zip(*values.values(), strict=True)
        ax.errorbar(left, middles, yerr=spreads, label=name, **style)
    places = [sparsity for values in lines.values() for sparsity in values]
    ticks = [tick for tick in TICKS if min(places) <= tick <= max(places)]
    ax.set_xscale("log")
    ax.set_xticks([1 - tick for tick in ticks], [f"{tick:.0%}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.invert_xaxis()
    ax.set_xlabel("weights that are zero")
    ax.set_ylabel(of)
    where = f"measured on {about['machine']},\n{about['date']} (a recording)" if about else label
    ax.set_title(where, fontsize=9)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=9)
    return ax
