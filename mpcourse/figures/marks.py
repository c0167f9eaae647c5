"""What all pictures share: labels, letters, colours, markers."""

from mpcourse import svg

LABELS = ("measured here", "simulated", "quoted")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MARKERS = "osD^vP"


def device_letter(index: int) -> str:
    """The letter that stands for a device in pictures: A, B, and so on."""
    return LETTERS[index % len(LETTERS)]


def device_colour(index: int) -> str:
    """The colour that stands for a device in pictures."""
    return svg.COLOURS[index % len(svg.COLOURS)]


def check_label(label: str) -> None:
    """Refuse a figure that does not say where its numbers come from."""
    if label not in LABELS:
        raise ValueError(f"label is one of {', '.join(LABELS)}; got {label!r}")


def count(number: int, thing: str) -> str:
    """A number and what it counts: 1 row, 2 rows."""
    return f"{number} {thing}{'s' * (number != 1)}"
