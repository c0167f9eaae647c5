"""What all pictures share: where numbers come from, letters and colours of devices, axes."""

import string
from collections.abc import Iterable

from mpcourse.figures import svg

LABELS = ("measured here", "simulated", "quoted")


def device_letter(index: int) -> str:
    """The letter that stands for a device in pictures: A, B, and so on."""
    return string.ascii_uppercase[index % 26]


def device_colour(index: int) -> str:
    """The colour that stands for a device in pictures."""
    return svg.COLOURS[index % len(svg.COLOURS)]


def scaled_unit(span: float, unit: str) -> tuple[float, str]:
    """What to multiply times by, and their unit: "ms" is for seconds, others stay as they are."""
    if unit != "ms":
        return 1.0, unit
    return (1e3, "ms") if span < 1 else (1.0, "s")


def check_label(label: str) -> None:
    """Refuse a figure that does not say where its numbers come from."""
    if label not in LABELS:
        raise ValueError(f"label is one of {', '.join(LABELS)}; got {label!r}")


def count(number: int, thing: str) -> str:
    """A number and what it counts: 1 row, 2 rows."""
    return f"{number} {thing}{'s' * (number != 1)}"


def ticks(foot: float, places: Iterable[tuple[float, str]], *, length: float = 5) -> list[str]:
    """Marks below a horizontal axis at `foot`, with words below them."""
    shapes = []
    for x, words in places:
        if length:
            shapes.append(svg.line(x, foot, x, foot + length))
        shapes.append(svg.text(x, foot + 14 + (length or 4), words, size=11, anchor="middle"))
    return shapes


def levels(left: float, right: float, places: Iterable[tuple[float, str]]) -> list[str]:
    """Light lines across a field, with words at their left ends."""
    shapes = []
    for y, words in places:
        shapes.append(svg.line(left, y, right, y, colour="#e5e5e5"))
        if words:
            shapes.append(svg.text(left - 8, y, words, size=11, anchor="end", middle=True))
    return shapes
