"""What each rank holds of an array, before and after its parts are traded or gathered."""

from collections.abc import Mapping, Sequence

from mpcourse.figures import svg
from mpcourse.figures.marks import count, device_colour

LEFT, TOP, WIDE, HIGH, GAP = 110, 40, 26, 16, 26


def held_picture(steps: Mapping[str, Sequence[Sequence[Sequence[str]]]]) -> svg.Picture:
    """Draw a line per step and each rank's array in it; colours are those of the first owners.

    Args:
        steps: Name -> each rank's rows from the top; an entry names a part of the whole array. In
            the first step each part has one owner.

    Raises:
        ValueError: In the first step a part has several owners, or one of a later step has none.
    """
    first = next(iter(steps.values()))
    owned = [(part, rank) for rank, rows in enumerate(first) for row in rows for part in row]
    owner = dict(owned)
    held = {part for ranks in steps.values() for rows in ranks for row in rows for part in row}
    if len(owner) < len(owned) or held - owner.keys():
        raise ValueError(f"in the first step each part has one owner; got {owned}")
    wide = GAP + WIDE * max(len(row) for ranks in steps.values() for rows in ranks for row in rows)
    columns = [LEFT + wide * rank for rank in range(len(first))]
    shapes = [svg.text(x, 26, f"rank {rank}", size=12) for rank, x in enumerate(columns)]
    said, y = [], TOP
    for name, ranks in steps.items():
        shapes.append(svg.text(12, y + HIGH / 2, name, size=12, middle=True))
        for rank, (x, rows) in enumerate(zip(columns, ranks, strict=True)):
            said.append(f"{name}, rank {rank}: " + ", ".join(" ".join(row) for row in rows))
            for down, row in enumerate(rows):
                for across, part in enumerate(row):
                    look = {
                        "colour": device_colour(owner[part]),
                        "label": part,
                        "hint": f"{name}, rank {rank}: {part}, first on rank {owner[part]}",
                    }
                    place = x + WIDE * across, y + HIGH * down, WIDE, HIGH
                    shapes.append(svg.box(*place, **look))
        y += HIGH * max(map(len, ranks)) + GAP
    size = LEFT + wide * len(first), y
    title = f"What {count(len(first), 'rank')} hold: {', '.join(steps)}"
    return svg.picture(shapes, size, title=title, description="; ".join(said))
