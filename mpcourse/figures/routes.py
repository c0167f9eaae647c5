"""The ways of tokens through a mixture whose experts stand on several ranks."""

from collections.abc import Mapping, Sequence

from mpcourse.figures import svg

LEFT, TOP, STEP, ROW, WIDE, HIGH = 64, 44, 104, 28, 40, 20
NO_ROOM = "#ffffff"


def routes_picture(steps: Mapping[str, Sequence[Sequence[str]]]) -> svg.Picture:
    """Draw where each token's row stands at each step; lines between ranks are messages.

    Args:
        steps: Name -> each rank's rows from the top: a letter and its expert's number, which gives
            the colour. A row that is gone before the last step found no room: in a column for the
            outputs, drawn like the first step, its token gets 0.
    """
    first, *_, home = steps.values()
    back = {row for rows in home for row in rows}
    outputs = [[row if row in back else f"{row[0]}: 0" for row in rows] for rows in first]
    places, lines, boxes = {}, [], []
    high = [ROW * max(len(rows[rank]) for rows in steps.values()) for rank in range(len(first))]
    for column, (name, ranks) in enumerate([*steps.items(), ("weighted, added", outputs)]):
        x = LEFT + STEP * column
        boxes.append(svg.text(x + WIDE / 2, 22, name, size=12, anchor="middle"))
        for rank, rows in enumerate(ranks):
            for place, row in enumerate(rows):
                y = TOP + sum(high[:rank]) + 22 * rank + ROW * place
                if start := places.get(row[0]):
                    points = [start[1:], (x, y + HIGH / 2)]
                    look = (
                        {"dashes": "4 4"} if ":" in row else {"width": 1 + 2 * (rank != start[0])}
                    )
                    lines.append(svg.polyline(points, colour="#555555", **look))
                places[row[0]] = rank, x + WIDE, y + HIGH / 2
                colour = NO_ROOM if ":" in row else svg.COLOURS[int(row[1:])]
                hint = f"rank {rank}, {name}: {row}"
                boxes.append(svg.box(x, y, WIDE, HIGH, colour=colour, label=row, hint=hint))
    for rank in range(len(first)):
        y = TOP + sum(high[:rank]) + 22 * rank + HIGH / 2
        boxes.append(svg.text(12, y, f"rank {rank}", size=12, middle=True))
    size = LEFT + STEP * len(steps) + WIDE + 32, TOP + sum(high) + 22 * (len(first) - 1) + 8
    said = [
        f"{name}: " + "; ".join(f"rank {rank} {' '.join(rows)}" for rank, rows in enumerate(ranks))
        for name, ranks in [*steps.items(), ("weighted, added", outputs)]
    ]
    title = f"the ways of {len(places)} tokens over {len(first)} ranks"
    return svg.picture([*lines, *boxes], size, title=title, description=". ".join(said))
