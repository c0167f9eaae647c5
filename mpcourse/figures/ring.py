"""What each rank holds during a ring all-reduce."""

from collections.abc import Sequence

from mpcourse.figures import svg
from mpcourse.figures.marks import count

EMPTY, PARTIAL, WHOLE, ARROW = "#ffffff", "#E69F00", "#009E73", "#0072B2"


def ring_picture(states: Sequence[Sequence[Sequence[tuple[int, ...]]]], step: int) -> svg.Picture:
    """Draw what each rank holds of each chunk after a step of a simulated ring all-reduce.

    A row per rank, a column per chunk. A box names the ranks whose numbers are in the sum: white
    if it is the rank's own alone, orange a part, green the whole. An arrow into a box is a message
    of this step; the grey arrows beside the ranks say who is whose right neighbour.

    Args:
        states: As `mpcourse.multiprocess.ring_steps.ring_states` returns them.
        step: Which state, from 0, before anything is sent.

    Raises:
        ValueError: There is no such step.
    """
    if not 0 <= step < len(states):
        raise ValueError(f"step is 0 to {len(states) - 1}; got {step}")
    held, before = states[step], states[max(step - 1, 0)]
    ranks = len(held)
    left, top, wide, row, high = 76, 82, 34 + 14 * ranks, 48, 28
    round_ = "before" if step == 0 else "round 1, add" if step < ranks else "round 2, replace"
    shapes = [svg.text(14, 24, f"simulated; step {step} of {len(states) - 1} ({round_})")]
    for chunk in range(ranks):
        x = left + chunk * wide + wide / 2
        shapes.append(svg.text(x, 52, f"chunk {chunk}", size=11, anchor="middle"))
    spoken, below = [], top + (ranks - 1) * row + high
    shapes.append(svg.text(left - 8, below + row - high + 5, "to rank 0", size=11, anchor="end"))
    for rank, chunks in enumerate(held):
        y = top + rank * row
        shapes.append(
            svg.text(left - 8, y + 14, f"rank {rank}", size=12, anchor="end", middle=True)
        )
        shapes += _arrow(left - 26, y + high - 5, y + row - 5, "#999999")
        for chunk, summed in enumerate(chunks):
            arrived = summed != before[rank][chunk]
            words = "+".join(str(part) for part in summed)
            part = PARTIAL if len(summed) > 1 else EMPTY
            colour = WHOLE if len(summed) == ranks else part
            place = (left + chunk * wide + 2, y, wide - 4, high)
            said = f"rank {rank} holds {words} of chunk {chunk}" + ", new" * arrived
            shapes.append(svg.box(*place, colour=colour, label=words, hint=said))
            if arrived:
                shapes += _arrow(left + (chunk + 0.5) * wide, y - row + high, y, ARROW)
            spoken.append(said)
    size = (left + ranks * wide + 24, below + row - high + 13)
    title = f"Ring all-reduce of {count(ranks, 'rank')}, step {step} (simulated)"
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))


def _arrow(x: float, start: float, end: float, colour: str) -> list[str]:
    """From one row down to the next."""
    head = [(x, end), (x - 5, end - 8), (x + 5, end - 8)]
    shaft = svg.polyline([(x, start), (x, end - 7)], colour=colour, width=3)
    return [shaft, svg.area(head, colour=colour, hint="to the right neighbour")]
