"""One step of a pruned pipeline, and below it how much each share of channels gains.

Page `capstone`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpcourse.figures import svg
from mpcourse.figures.timelines import event_box, time_axis
from mpcourse.schedules.timeline import Timeline

WIDTH, LEFT, RIGHT = 720, 96, 40
HEIGHT = 190  # of the field of the curves
DASHES = ("", "7 4", "2 4")


@dataclass(frozen=True)
class Gains:
    """Speed-ups by the share of channels that stays; plain numbers, ready to be drawn.

    Attributes:
        lines: Name of a line -> share (above 0 and at most 1) -> speed-up. All have the same
            shares, two or more.
    """

    lines: Mapping[str, Mapping[float, float]]

    def __post_init__(self) -> None:
        shares = {tuple(sorted(line)) for line in self.lines.values()}
        if len(shares) != 1 or len(next(iter(shares))) < 2:
            raise ValueError(
                f"every line has the same shares, two or more; got {sorted(map(list, shares))}"
            )

    @property
    def shares(self) -> list[float]:
        """The shares, rising."""
        return sorted(next(iter(self.lines.values())))


def gains_picture(
    gains: Gains, chosen: float, timeline: Timeline, device_names: Sequence[str], *, caption: str
) -> svg.Picture:
    """Draw one simulated step, and below it the speed-ups with rings at its share.

    Args:
        gains: Speed-ups by share.
        chosen: The share of the step.
        timeline: The simulated step, in units of work.
        device_names: One name per device.
        caption: What stands above the step.

    Raises:
        ValueError: The share is none of the lines', or there are more or fewer names than devices.
    """
    if chosen not in gains.shares:
        raise ValueError(f"shares are {', '.join(f'{s:g}' for s in gains.shares)}; got {chosen!r}")
    if len(device_names) != timeline.num_devices:
        raise ValueError(f"{timeline.num_devices} devices need names; got {len(device_names)}")
    headline = f"simulated; {caption}"
    shapes = [svg.text(16, 22, headline)]
    pixels = (WIDTH - LEFT - RIGHT - 40) / (timeline.makespan or 1.0)
    for index, name in enumerate(device_names):
        shapes.append(svg.text(LEFT - 8, 47 + 32 * index, name, size=12, anchor="end", middle=True))
    for event in timeline.events:
        place = (LEFT, 34 + 32 * event.device_index, pixels)
        shapes.append(event_box(event, place, device_names, 1.0, "million multiply-adds")[0])
    bottom = 34 + 32 * len(device_names)
    shapes += time_axis(LEFT, bottom, WIDTH - LEFT - RIGHT - 40, timeline.makespan, "M")
    more, foot = _curves(gains, chosen, bottom + 44)
    spoken = [headline, *_spoken(gains)]
    title = "A step of a pruned pipeline, and speed-ups over the share of channels kept"
    return svg.picture([*shapes, *more], (WIDTH, foot), title=title, description="; ".join(spoken))


def _curves(gains: Gains, chosen: float, top: float) -> tuple[list[str], float]:
    """The shapes of the curves below `top`, and where they end."""
    highest = 1.05 * max(max(line.values()) for line in gains.lines.values())
    field = top + 20 * len(gains.lines) + 8
    foot = field + HEIGHT

    def at(share: float, gain: float) -> tuple[float, float]:
        low, high = gains.shares[0], gains.shares[-1]
        x = LEFT + (high - share) / (high - low) * (WIDTH - LEFT - RIGHT)
        return x, foot - gain / highest * HEIGHT

    shapes = _axes(gains, highest, at, foot)
    for row, (name, line) in enumerate(gains.lines.items()):
        look = {"colour": svg.COLOURS[row % 3], "dashes": DASHES[row % 3]}
        y = top + 20 * row
        words = f"{name}: {line[chosen]:.2f} times as fast"
        shapes.append(svg.polyline([(LEFT, y), (LEFT + 30, y)], **look))
        shapes.append(svg.text(LEFT + 40, y, words, size=12, middle=True))
        shapes.append(svg.polyline([at(s, line[s]) for s in gains.shares], **look))
        x, y = at(chosen, line[chosen])
        shapes.append(svg.mark(x, y, shape="ring", colour=look["colour"], hint=words, size=6))
    return shapes, foot + 44


def _axes(gains: Gains, highest: float, at, foot: float) -> list[str]:
    right = WIDTH - RIGHT
    shapes = [svg.line(LEFT, foot, right, foot)]
    for share in gains.shares:
        x, _ = at(share, 0.0)
        shapes.append(svg.line(x, foot, x, foot + 5))
        shapes.append(svg.text(x, foot + 19, f"{100 * share:g}%", size=11, anchor="middle"))
    words = "channels kept in the pruned blocks: fewer to the right"
    shapes.append(svg.text((LEFT + right) / 2, foot + 37, words, size=12, anchor="middle"))
    for number in range(int(highest) + 1):
        _, y = at(gains.shares[0], number)
        shapes.append(svg.line(LEFT, y, right, y, colour="#e5e5e5"))
        if number % (1 + int(highest) // 8) == 0:
            shapes.append(svg.text(LEFT - 8, y, f"{number}", size=11, anchor="end", middle=True))
    return shapes


def _spoken(gains: Gains) -> list[str]:
    return [
        f"{name}: "
        + ", ".join(f"{100 * share:g}% kept {line[share]:.2f}" for share in sorted(line))
        for name, line in gains.lines.items()
    ]
