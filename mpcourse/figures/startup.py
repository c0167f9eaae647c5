"""Start-up against steady state: the time of all calls so far (page 13)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpcourse.figures.marks import check_label, device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = ("-", "--", "-.", ":")


def plot_totals(
    times: Mapping[str, tuple[float, float]],
    ax: "Axes",
    *,
    most_calls: int = 1_000_000,
    label: str = "measured here",
) -> "Axes":
    """Plot start-up plus calls over the number of calls, one line per name.

    Both axes are logarithmic: flat is start-up, steep is steady state.

    Args:
        times: Name -> seconds of the start-up and of each call.
        ax: The matplotlib axes to draw into.
        most_calls: Where the lines end, 10 or more.
        label: "measured here", "simulated" or "quoted": where the times come from.

    Returns:
        `ax`.

    Raises:
        ValueError: `most_calls` is less than 10, or `label` is another.
    """
    check_label(label)
    if most_calls < 10:
        raise ValueError(f"most_calls is 10 or more; got {most_calls}")
    points = 100
    calls = [most_calls ** (point / (points - 1)) for point in range(points)]
    for index, (name, (startup, call)) in enumerate(times.items()):
        style = {"color": device_colour(index), "linestyle": STYLES[index % len(STYLES)]}
        ax.plot(calls, [startup + each * call for each in calls], label=name, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("calls")
    ax.set_ylabel("seconds, start-up and all calls")
    ax.set_title(label, fontsize=9)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=9)
    return ax
