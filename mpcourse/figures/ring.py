"""What each rank holds during a ring all-reduce."""

from collections.abc import Sequence

from mpcourse.figures import svg
from mpcourse.figures.marks import count

EMPTY, PARTIAL, WHOLE = "#ffffff", "#E69F00", "#009E73"


def ring_picture(states: Sequence[Sequence[Sequence[tuple[int, ...]]]], step: int) -> svg.Picture:
    """Draw what each rank holds of each chunk after a step of a simulated ring all-reduce.

    A row per rank, a column per chunk. A box names the ranks whose numbers are in the sum: white
    if it is the rank's own alone, orange a part, green the whole. What has arrived in this step is
    marked by an arrow.

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
    left, top, wide, row = 76, 62, 34 + 14 * ranks, 34
    round_ = "before" if step == 0 else "round 1, add" if step < ranks else "round 2, replace"
    shapes = [svg.text(14, 24, f"simulated; step {step} of {len(states) - 1} ({round_})")]
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
    title = f"Ring all-reduce of {count(ranks, 'rank')}, step {step} (simulated)"
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))
