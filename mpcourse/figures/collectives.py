"""All-reduce: what each rank holds during a ring, and what the ways send.

Page `collectives`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpcourse.figures import svg
from mpcourse.figures.marks import MARKERS, check_label, count, device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EMPTY, PARTIAL, WHOLE = "#ffffff", "#E69F00", "#009E73"


def ring_picture(
    states: Sequence[Sequence[Sequence[tuple[int, ...]]]], step: int, *, label: str = "simulated"
) -> svg.Picture:
    """Draw what each rank holds of each chunk after a step of a ring all-reduce.

    A row per rank, a column per chunk. A box names the ranks whose numbers are in the sum: white
    if it is the rank's own alone, orange a part, green the whole. What has arrived in this step is
    marked by an arrow.

    Args:
        states: As `mpcourse.multiprocess.ring_steps.ring_states` returns them.
        step: Which state, from 0, before anything is sent.
        label: "measured here", "simulated" or "quoted": where the states come from.

    Raises:
        ValueError: There is no such step, or `label` is another.
    """
    check_label(label)
    if not 0 <= step < len(states):
        raise ValueError(f"step is 0 to {len(states) - 1}; got {step}")
    held, before = states[step], states[max(step - 1, 0)]
    ranks = len(held)
    left, top, wide, row = 76, 62, 34 + 14 * ranks, 34
    round_ = "before" if step == 0 else "round 1, add" if step < ranks else "round 2, replace"
    shapes = [svg.text(14, 24, f"{label}; step {step} of {len(states) - 1} ({round_})")]
    for chunk in range(ranks):
        x = left + chunk * wide + wide / 2
        shapes.append(svg.text(x, 52, f"chunk {chunk}", size=11, anchor="middle"))
    spoken = []
    for rank, chunks in enumerate(held):
        y = top + rank * row
        shapes.append(
            svg.text(left - 8, y + 14, f"rank {rank}", size=12, anchor="end", middle=True)
        )
        for chunk, summed in enumerate(chunks):
            arrived = summed != before[rank][chunk]
            words = "+".join(str(part) for part in summed)
            part = PARTIAL if len(summed) > 1 else EMPTY
            colour = WHOLE if len(summed) == ranks else part
            place = (left + chunk * wide + 2, y, wide - 4, row - 6)
            said = f"rank {rank} holds {words} of chunk {chunk}" + ", new" * arrived
            sign = f"→ {words}" if arrived else words
            shapes.append(svg.box(*place, colour=colour, label=sign, hint=said))
            spoken.append(said)
    size = (left + ranks * wide + 24, top + ranks * row + 8)
    title = f"Ring all-reduce of {count(ranks, 'rank')}, step {step} ({label})"
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))


def plot_sent(
    ranks: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    measured: Mapping[str, tuple[int, float]],
    ax: "Axes",
) -> "Axes":
    """Plot what the busiest rank sends over the number of ranks, with measured points on top.

    Args:
        ranks: Numbers of ranks.
        lines: Way -> simulated, for each of `ranks`, in units of the tensor.
        measured: Way -> (number of ranks, measured here, in units of the tensor).
        ax: The matplotlib axes to draw into.

    Returns:
        `ax`.

    Raises:
        ValueError: A line has more or fewer points than `ranks`, or a measured way no line.
    """
    for way, values in lines.items():
        if len(values) != len(ranks):
            raise ValueError(f"{way}: {len(ranks)} points are needed; got {len(values)}")
    if unknown := [way for way in measured if way not in lines]:
        raise ValueError(f"no line for {', '.join(unknown)}; lines are {', '.join(lines)}")
    for index, (way, values) in enumerate(lines.items()):
        style = {"color": device_colour(index), "linestyle": ("-", "--")[index % 2]}
        ax.plot(ranks, values, label=f"{way}, simulated", **style)
        if way in measured:
            marker = {"marker": MARKERS[index % len(MARKERS)], "markersize": 9}
            place = [[value] for value in measured[way]]
            label = f"{way}, measured here"
            ax.plot(*place, linestyle="none", color=style["color"], label=label, **marker)
    ax.set_xlabel("ranks")
    ax.set_ylabel("sent by the busiest rank (tensors)")
    ax.set_title("an all-reduce of one tensor")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    ax.legend()
    return ax
