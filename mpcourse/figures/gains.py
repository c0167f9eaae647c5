"""One step of a pruned pipeline, and below it how much each share of channels gains."""

from collections.abc import Mapping, Sequence

from mpcourse.figures import svg
from mpcourse.figures.marks import levels, ticks
from mpcourse.figures.timelines import Rows
from mpcourse.schedules.timeline import Timeline

WIDTH, LEFT, RIGHT = 720, 96, 40
HEIGHT = 190  # of the field of the curves
DASHES = ("", "7 4", "2 4")


def gains_picture(
    gains: Mapping[str, Mapping[float, float]],
    chosen: float,
    timeline: Timeline,
    device_names: Sequence[str],
    *,
    caption: str,
) -> svg.Picture:
    """Draw a simulated step, and below it speed-ups (by name and share kept), its share ringed."""
    shares = sorted(next(iter(gains.values())))
    if chosen not in shares:
        raise ValueError(f"shares are {', '.join(f'{s:g}' for s in shares)}; got {chosen!r}")
    headline = f"simulated; {caption}"
    place = {"left": LEFT, "top": 34, "height": 32, "width": WIDTH - LEFT - RIGHT - 40}
    rows = Rows(timeline, device_names, unit="million multiply-adds", **place)
    shapes = [svg.text(16, 22, headline), *rows.shapes(axis_unit="M")]
    more, foot = _curves(gains, chosen, rows.bottom + 44)
    spoken = [headline]
    for name, line in gains.items():
        kept = ", ".join(f"{100 * share:g}% kept {line[share]:.2f}" for share in sorted(line))
        spoken.append(f"{name}: {kept}")
    title = "A step of a pruned pipeline, and speed-ups over the share of channels kept"
    return svg.picture([*shapes, *more], (WIDTH, foot), title=title, description="; ".join(spoken))


def _curves(
    gains: Mapping[str, Mapping[float, float]], chosen: float, top: float
) -> tuple[list[str], float]:
    """The shapes of the curves below `top`, and where they end."""
    highest = 1.05 * max(max(line.values()) for line in gains.values())
    foot = top + 20 * len(gains) + 8 + HEIGHT
    right = WIDTH - RIGHT
    shares = sorted(next(iter(gains.values())))

    def at(share: float, gain: float) -> tuple[float, float]:
        x = LEFT + (shares[-1] - share) / (shares[-1] - shares[0]) * (right - LEFT)
        return x, foot - gain / highest * HEIGHT

    shapes = [svg.line(LEFT, foot, right, foot)]
    shapes += ticks(foot, [(at(share, 0.0)[0], f"{100 * share:g}%") for share in shares])
    words = "channels kept in the pruned blocks: fewer to the right"
    shapes.append(svg.text((LEFT + right) / 2, foot + 37, words, size=12, anchor="middle"))
    every = 1 + int(highest) // 8  # room for eight numbers
    for number in range(int(highest) + 1):
        words = "" if number % every else str(number)
        shapes += levels(LEFT, right, [(at(shares[0], number)[1], words)])
    for row, (name, line) in enumerate(gains.items()):
        look = {"colour": svg.COLOURS[row % 3], "dashes": DASHES[row % 3]}
        y = top + 20 * row
        words = f"{name}: {line[chosen]:.2f} times as fast"
        shapes.append(svg.polyline([(LEFT, y), (LEFT + 30, y)], **look))
        shapes.append(svg.text(LEFT + 40, y, words, size=12, middle=True))
        shapes.append(svg.polyline([at(share, line[share]) for share in shares], **look))
        x, y = at(chosen, line[chosen])
        shapes.append(svg.mark(x, y, shape="ring", colour=look["colour"], hint=words, size=6))
    return shapes, foot + 44
