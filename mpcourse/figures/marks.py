"""What all pictures share: labels, letters, colours, markers."""

from mpcourse.figures import svg

LABELS = ("measured here", "simulated", "quoted")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MARKERS = "osD^vP"


def device_letter(index: int) -> str:
    """The letter that stands for a device in pictures: A, B, and so on."""
    return LETTERS[index % len(LETTERS)]


def device_colour(index: int) -> str:
    """The colour that stands for a device in pictures."""
    return svg.COLOURS[index % len(svg.COLOURS)]


def scaled_unit(span: float, unit: str) -> tuple[float, str]:
    """What to multiply times by, and their unit: seconds become ms below one second.

    Args:
        span: The longest time, in the timeline's unit.
        unit: "ms" for a timeline in seconds; any other word is the timeline's own unit.
    """
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
