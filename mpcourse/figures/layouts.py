"""The step time of layouts as stacked bars, the fastest that fits marked."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpcourse.figures import svg
from mpcourse.figures.marks import check_label

LEFT, WIDTH, RIGHT, ROW, TOP = 150, 470, 190, 30, 64


@dataclass(frozen=True)
class LayoutTime:
    """A bar.

    Attributes:
        name: Of the layout.
        seconds: By what they are spent on.
        held: Bytes of the fullest rank.
    """

    name: str
    seconds: dict[str, float]
    held: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(self.seconds.values())


def layouts_picture(
    bars: Sequence[LayoutTime], memory: float, *, label: str, caption: str
) -> svg.Picture:
    """Draw a bar for each layout; mark the fastest of those that a rank's memory holds.

    Args:
        bars: In the order drawn; all have the same purposes.
        memory: Bytes that a rank has.
        label: "measured here", "simulated" or "quoted": where the times come from.
        caption: What stands above.

    Raises:
        ValueError: The label is another, there is no bar, or the bars' purposes differ.
    """
    check_label(label)
    purposes = list(bars[0].seconds) if bars else []
    if not purposes or any(list(bar.seconds) != purposes for bar in bars):
        raise ValueError("there has to be a bar, and all have the same purposes")
    longest = max(bar.total for bar in bars)
    best = min((bar for bar in bars if bar.held <= memory), key=lambda bar: bar.total, default=None)
    headline = f"{label}; {caption}"
    shapes, x = [svg.text(16, 22, headline)], 16.0
    for index, purpose in enumerate(purposes):
        letter, words = purpose[0].upper(), f"{purpose[0].upper()}: {purpose}"
        shapes.append(svg.box(x, 36, 14, 14, colour=svg.COLOURS[index], label=letter))
        shapes.append(svg.text(x + 20, 43, words, size=12, middle=True))
        x += 40 + 6.5 * len(words)
    spoken = []
    for row, bar in enumerate(bars):
        note = "does not fit" if bar.held > memory else "the fastest" if bar is best else ""
        words = f"{bar.total:.3g} s, {bar.held / 1e9:.3g} GB{': ' * bool(note)}{note}"
        shapes += _bar(bar, words, TOP + row * ROW, longest)
        spoken.append(f"{bar.name} {words}")
    size = (LEFT + WIDTH + RIGHT, TOP + len(bars) * ROW + 8)
    title = f"Step time of layouts ({label})"
    return svg.picture(shapes, size, title=title, description="; ".join([headline, *spoken]))


def _bar(bar: LayoutTime, words: str, top: float, longest: float) -> list[str]:
    shapes = [svg.text(LEFT - 8, top + 11, bar.name, size=12, anchor="end", middle=True)]
    x = float(LEFT)
    for index, (purpose, seconds) in enumerate(bar.seconds.items()):
        width = seconds / longest * WIDTH
        look = {"colour": svg.COLOURS[index], "label": purpose[0].upper()}
        if width > 0:
            shapes.append(svg.box(x, top, width, 22, hint=f"{purpose}: {seconds:.3g} s", **look))
        x += width
    return [*shapes, svg.text(x + 8, top + 11, words, size=12, middle=True)]
