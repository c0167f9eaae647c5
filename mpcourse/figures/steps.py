"""Lines over the steps of a training (page `sparse_training`)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpcourse.figures.marks import check_label, device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = ("-", "--", "-.", ":")


def plot_over_steps(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    ax: "Axes",
    *,
    of: str,
    label: str = "measured here",
) -> "Axes":
    """Plot values over the steps of the optimizer, one line per name.

    Args:
        lines: Name -> (step, value) of each point, in order.
        ax: The matplotlib axes to draw into.
        of: What the values are, in words.
        label: "measured here", "simulated" or "quoted": where the values come from.

    Returns:
        `ax`.

    Raises:
        ValueError: A line without a point, or `label` is another.
    """
    check_label(label)
    if empty := [name for name, points in lines.items() if not points]:
        raise ValueError(f"each line needs a point or more; without one: {', '.join(empty)}")
    for index, (name, points) in enumerate(lines.items()):
        steps, values = zip(*points, strict=True)
        style = {"color": device_colour(index), "linestyle": STYLES[index % len(STYLES)]}
        ax.plot(steps, values, label=name, **style)
    ax.set_xlabel("steps of the optimizer")
    ax.set_ylabel(of)
    ax.set_title(label, fontsize=9)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=9)
    return ax
