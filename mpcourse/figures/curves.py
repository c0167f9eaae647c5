"""Curves in matplotlib axes: times over sizes (page `parallel_apply`)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpcourse.figures.marks import MARKERS, check_label, device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_times(
    sizes: Sequence[int],
    times_s: Mapping[str, Sequence[tuple[float, float]]],
    ax: "Axes",
    *,
    label: str = "measured here",
) -> "Axes":
    """Plot time over batch size, one line with its spread per name.

    Args:
        sizes: Batch sizes, in samples.
        times_s: Name -> (median, spread) in seconds for each size.
        ax: The matplotlib axes to draw into.
        label: "measured here", "simulated" or "quoted": where the times come from.

    Returns:
        `ax`.
    """
    check_label(label)
    for index, (name, values) in enumerate(times_s.items()):
        medians = [1e3 * median for median, _ in values]
        spreads = [1e3 * spread / 2 for _, spread in values]
        style = {"color": device_colour(index), "marker": MARKERS[index % len(MARKERS)]}
        ax.errorbar(sizes, medians, yerr=spreads, label=name, capsize=3, **style)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(list(sizes), [str(size) for size in sizes])
    ax.set_xlabel("batch size (samples)")
    ax.set_ylabel("time of a forward pass (ms)")
    ax.set_title(label)
    ax.grid(alpha=0.3)
    ax.legend()
    return ax
