"""Start-up against steady state: the time saved after so many calls.

Page `compilation`.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpcourse.figures.marks import check_label, device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = ("-", "--", "-.", ":")
POINTS = 100


def plot_savings(
    times: Mapping[str, tuple[float, float]],
    ax: "Axes",
    *,
    most_calls: int = 1_000_000,
    label: str = "measured here",
) -> "Axes":
    """Plot the seconds that each name has saved against the first one, over the number of calls.

    Both axes are logarithmic, the upright one within a second of 0 linear. A ring marks where a
    line crosses 0: there, what the start-up costs beyond the first name's has paid back, and the
    legend says after how many calls: the smallest whole number that is enough.

    Args:
        times: Name -> seconds of the start-up and of each call; the first is compared with.
        ax: The matplotlib axes to draw into.
        most_calls: Where the lines end, 10 or more.
        label: "measured here", "simulated" or "quoted": where the times come from.

    Returns:
        `ax`.

    Raises:
        ValueError: Fewer than two names, `most_calls` is less than 10, or `label` is another.
    """
    check_label(label)
    if len(times) < 2:
        raise ValueError(f"two names or more: one is compared with the first; got {list(times)}")
    if most_calls < 10:
        raise ValueError(f"most_calls is 10 or more; got {most_calls}")
    calls = [most_calls ** (point / (POINTS - 1)) for point in range(POINTS)]
    (first, (own_startup, own_call)), *others = times.items()
    ax.axhline(0.0, color="black", linewidth=1)
    for index, (name, (startup, call)) in enumerate(others):
        cost, gain = startup - own_startup, own_call - call
        crossing = cost / gain if cost > 0 and gain > 0 else None
        paid = "" if crossing is None else f": pays back after {math.ceil(crossing):,} calls"
        style = {"color": device_colour(index), "linestyle": STYLES[index % len(STYLES)]}
        ax.plot(calls, [each * gain - cost for each in calls], label=name + paid, **style)
        if crossing is not None and 1 <= crossing <= most_calls:
            ax.plot([crossing], [0.0], "o", color=device_colour(index), fillstyle="none")
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=1.0)
    ax.set_xlabel("calls")
    ax.set_ylabel(f"seconds saved against {first}")
    ax.set_title(label, fontsize=9)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=9)
    return ax
