"""Stacked bars of bytes, against the memory that devices have (page `does_it_fit`)."""

from collections.abc import Mapping

from mpcourse.figures import svg
from mpcourse.figures.marks import check_label

LEFT, WIDTH, RIGHT, ROW, TOP = 150, 560, 110, 38, 64
LIMITS = (16, 24, 80)
GIGABYTE = 10**9


def byte_bars(bars: Mapping[str, Mapping[str, float]], *, label: str, caption: str) -> svg.Picture:
    """Draw what is held as bars, and lines for devices with 16, 24 and 80 GB.

    Args:
        bars: Name of a bar -> purpose -> bytes. All bars have the same purposes.
        label: "measured here", "simulated" or "quoted": where the bytes come from.
        caption: What stands above.

    Raises:
        ValueError: The label is another, there is no bar, or the bars' purposes differ.
    """
    check_label(label)
    purposes = list(next(iter(bars.values()), ()))
    if not purposes or any(list(bar) != purposes for bar in bars.values()):
        raise ValueError("there has to be a bar, and all have the same purposes")
    totals = {name: sum(bar.values()) for name, bar in bars.items()}
    widest = max([*totals.values(), 1.05 * LIMITS[0] * GIGABYTE])
    headline = f"{label}; {caption}"
    shapes = [svg.text(16, 22, headline)]
    x = LEFT
    for index, purpose in enumerate(purposes):
        words = f"{purpose[0].upper()}: {purpose}"
        shapes.append(svg.box(x, 36, 14, 14, colour=svg.COLOURS[index], label=purpose[0].upper()))
        shapes.append(svg.text(x + 20, 43, words, size=12, middle=True))
        x += 40 + 7 * len(words)
    for row, (name, bar) in enumerate(bars.items()):
        shapes += _bar(name, bar, TOP + row * ROW, widest)
    foot = TOP + len(bars) * ROW
    for limit in LIMITS:
        x = LEFT + limit * GIGABYTE / widest * WIDTH
        if x <= LEFT + WIDTH:
            shapes.append(svg.line(x, TOP - 6, x, foot + 6, colour="#000000"))
            shapes.append(svg.text(x, foot + 20, f"{limit} GB", size=11, anchor="middle"))
    spoken = [f"{name}: {_said(bar)}" for name, bar in bars.items()]
    title = f"Bytes of a rank by purpose ({label})"
    size = (LEFT + WIDTH + RIGHT, foot + 32)
    return svg.picture(shapes, size, title=title, description="; ".join([headline, *spoken]))


def _bar(name: str, bar: Mapping[str, float], top: float, widest: float) -> list[str]:
    shapes = [svg.text(LEFT - 8, top + 14, name, size=12, anchor="end", middle=True)]
    x = float(LEFT)
    for index, (purpose, size) in enumerate(bar.items()):
        width = size / widest * WIDTH
        hint = f"{purpose}: {in_gigabytes(size)}"
        look = {"colour": svg.COLOURS[index], "label": purpose[0].upper(), "hint": hint}
        if width > 0:
            shapes.append(svg.box(x, top, width, 28, **look))
        x += width
    total = in_gigabytes(sum(bar.values()))
    shapes.append(svg.text(x + 8, top + 14, total, size=12, middle=True))
    return shapes


def _said(bar: Mapping[str, float]) -> str:
    parts = [f"{purpose} {in_gigabytes(size)}" for purpose, size in bar.items()]
    return ", ".join([*parts, f"together {in_gigabytes(sum(bar.values()))}"])


def in_gigabytes(size: float) -> str:
    """Bytes in words: three digits and GB."""
    return f"{size / GIGABYTE:.3g} GB"
