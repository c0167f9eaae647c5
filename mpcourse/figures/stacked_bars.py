"""Stacked bars with a colour and a letter for each purpose: bytes of ranks, times of layouts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mpcourse.figures import svg

LEFT, TOP = 150, 64
LIMITS = (16, 24, 80)  # gigabytes that devices have
GIGABYTE = 10**9


def byte_bars(bars: Mapping[str, Mapping[str, float]], *, caption: str) -> svg.Picture:
    """Draw computed bytes by name and purpose, and lines for devices with 16, 24 and 80 GB."""
    _check_purposes(list(bars.values()))
    totals = {name: sum(bar.values()) for name, bar in bars.items()}
    wide, row = 560, 38
    pixels = wide / max([*totals.values(), 1.05 * LIMITS[0] * GIGABYTE])
    headline = f"computed; {caption}"
    shapes = [svg.text(16, 22, headline), *_legend(next(iter(bars.values())), LEFT, 7)]
    spoken = [headline]
    for index, (name, bar) in enumerate(bars.items()):
        total = _in_gigabytes(totals[name])
        shapes += _bar(name, bar, total, TOP + index * row, 28, pixels, _in_gigabytes)
        parts = [f"{purpose} {_in_gigabytes(size)}" for purpose, size in bar.items()]
        spoken.append(f"{name}: {', '.join([*parts, f'together {total}'])}")
    foot = TOP + len(bars) * row
    for limit in LIMITS:
        x = LEFT + limit * GIGABYTE * pixels
        if x <= LEFT + wide:
            shapes.append(svg.line(x, TOP - 6, x, foot + 6, colour="#000000"))
            shapes.append(svg.text(x, foot + 20, f"{limit} GB", size=11, anchor="middle"))
    title = "Bytes of a rank by purpose (computed)"
    size = (LEFT + wide + 110, foot + 32)
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))


@dataclass(frozen=True)
class LayoutTime:
    """A bar: seconds by what they are spent on, and the bytes that the fullest rank holds."""

    name: str
    seconds: dict[str, float]
    held: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(self.seconds.values())


def layouts_picture(
    bars: Sequence[LayoutTime], memory: float, *, band: float, caption: str
) -> svg.Picture:
    """Draw simulated times; mark the layouts that nobody can tell from the fastest.

    Args:
        bars: A layout each.
        memory: Bytes of a rank; what needs more does not fit, whatever its time.
        band: How many times as slow a layout may come out and still be as fast, for all one knows.
        caption: What is shown.
    """
    _check_purposes([bar.seconds for bar in bars])
    wide, row = 470, 30
    longest = max(bar.total for bar in bars)
    pixels, foot = wide / longest, TOP + len(bars) * row
    best = min((bar.total for bar in bars if bar.held <= memory), default=0.0)
    headline = f"simulated; {caption}"
    shapes = [svg.text(16, 22, headline), *_legend(bars[0].seconds, 16, 5.2)]
    spoken = [headline]
    if best:
        words = f"shaded: up to {band - 1:.0%} slower than the fastest that fits: too close to tell"
        ends = [LEFT + min(end, longest) * pixels for end in (best, best * band)]
        corners = [*((end, TOP) for end in ends), *((end, foot) for end in reversed(ends))]
        shapes.append(svg.area(corners, colour="#dddddd", hint=words))
        shapes.append(svg.text(16, foot + 14, words, size=12))
        spoken.append(words)
    for index, bar in enumerate(bars):
        equal = "within the error" if bar.total <= band * best else ""
        note = "does not fit" if bar.held > memory else equal
        words = f"{bar.total:.3g} s, {bar.held / 1e9:.3g} GB{': ' * bool(note)}{note}"
        top = TOP + index * row
        shapes += _bar(bar.name, bar.seconds, words, top, 22, pixels, lambda s: f"{s:.3g} s")
        spoken.append(f"{bar.name} {words}")
    size = (LEFT + wide + 210, foot + 24)
    title = "Step time of layouts (simulated)"
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))


def _check_purposes(bars: Sequence[Mapping[str, float]]) -> None:
    if not bars or not bars[0] or any(list(bar) != list(bars[0]) for bar in bars):
        raise ValueError("there has to be a bar, and all have the same purposes")


def _legend(purposes: Mapping[str, float], x: float, letter_width: float) -> list[str]:
    shapes = []
    for index, purpose in enumerate(purposes):
        letter = purpose[0].upper()
        words = f"{letter}: {purpose}"
        shapes.append(svg.box(x, 36, 14, 14, colour=svg.COLOURS[index], label=letter))
        shapes.append(svg.text(x + 20, 43, words, size=12, middle=True))
        x += 40 + letter_width * len(words)
    return shapes


def _bar(
    name: str,
    parts: Mapping[str, float],
    words: str,
    top: float,
    height: float,
    pixels: float,
    said: Callable[[float], str],
) -> list[str]:
    """The name, the parts side by side, and words behind them."""
    middle = top + height / 2
    shapes = [svg.text(LEFT - 8, middle, name, size=12, anchor="end", middle=True)]
    x = float(LEFT)
    for index, (purpose, size) in enumerate(parts.items()):
        width = size * pixels
        if width > 0:
            look = {"colour": svg.COLOURS[index], "label": purpose[0].upper()}
            hint = f"{purpose}: {said(size)}"
            shapes.append(svg.box(x, top, width, height, hint=hint, **look))
        x += width
    return [*shapes, svg.text(x + 8, middle, words, size=12, middle=True)]


def _in_gigabytes(size: float) -> str:
    return f"{size / GIGABYTE:.3g} GB"
