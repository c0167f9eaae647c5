"""The few shapes that the course's pictures are made of, as SVG text. Standard library only.

Colours are those of Okabe and Ito (2008), which colour-blind people can tell apart; every box also
carries letters, so that no meaning hangs on colour.
"""

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from urllib.parse import quote, unquote

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_DARK = {"#0072B2"}  # white letters read better on it; black ones on all the others
FONT = "font-family:system-ui,sans-serif"
PLAIN = "".join(set(string.punctuation) - set('"#%&<>')) + " "  # in the address of an image
IMAGE = re.compile(r'<img alt="[^"]*" style="max-width:100%" src="data:image/svg\+xml,([^"]*)">')


@dataclass(repr=False)
class Picture:
    """An SVG picture that a notebook shows as the value of a cell; title and description say it."""

    svg: str
    title: str
    description: str

    def _repr_html_(self) -> str:
        """An image with alt text: JupyterLab neither reads SVG out nor shows that of strangers."""
        words = escape(f"{self.title}. {self.description}")
        source = f"data:image/svg+xml,{quote(self.svg, safe=PLAIN)}"
        return f'<img alt="{words}" style="max-width:100%" src="{source}">'

    def __repr__(self) -> str:
        return f"<picture: {self.title}>"


def picture(
    shapes: Iterable[str], size: tuple[float, float], *, title: str, description: str
) -> Picture:
    """Put shapes on a white sheet of so many pixels; screen readers read title and description."""
    width, height = size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" style="max-width:100%;{FONT}">'
    )
    about = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    sheet = f'<rect width="{width:g}" height="{height:g}" rx="6" fill="#ffffff"/>'
    return Picture("\n".join([head, about, sheet, *shapes, "</svg>"]), title, description)


def svg_in(html: str) -> str | None:
    """The SVG text of a picture that a page has stored; None where it is no such picture."""
    found = IMAGE.fullmatch(html)
    return unquote(found[1]) if found else None


def box(
    x: float, y: float, width: float, height: float, *, colour: str, label: str = "", hint: str = ""
) -> str:
    """A coloured box with a label in its middle; `hint` shows when the pointer rests on it."""
    rectangle = (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" rx="2" '
        f'fill="{colour}" stroke="#333333" stroke-width="0.6"/>'
    )
    ink = "#ffffff" if colour in _DARK else "#000000"
    size = min(13.0, height * 0.6, 1.35 * width / max(len(label), 1))  # W is the widest letter
    letters = text(
        x + width / 2, y + height / 2, label, size=size, anchor="middle", colour=ink, middle=True
    )
    return f"<g><title>{escape(hint or label)}</title>{rectangle}{letters if label else ''}</g>"


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 13,
    anchor: str = "start",
    colour: str = "#000000",
    middle: bool = False,
) -> str:
    """Words at a point; `middle` puts the middle of the letters there, not their foot."""
    baseline = ' dominant-baseline="central"' if middle else ""
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size:.3g}" text-anchor="{anchor}" '
        f'fill="{colour}"{baseline}>{escape(words)}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, colour: str = "#888888") -> str:
    """A thin straight line."""
    return f'<path d="M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}" stroke="{colour}" fill="none"/>'


def area(points: Iterable[tuple[float, float]], *, colour: str, hint: str) -> str:
    """The filled area inside a line through points; `hint` shows when the pointer rests on it."""
    line_through = "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
    return f'<g><title>{escape(hint)}</title><path d="M{line_through}Z" fill="{colour}"/></g>'


def polyline(
    points: Iterable[tuple[float, float]], *, colour: str, width: float = 2, dashes: str = ""
) -> str:
    """A line through points; `dashes` such as "6 4" breaks it up."""
    through = "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
    broken = f' stroke-dasharray="{dashes}"' if dashes else ""
    stroke = f'stroke="{colour}" stroke-width="{width:g}"{broken}'
    return f'<path d="M{through}" {stroke} fill="none"/>'


def mark(x: float, y: float, *, shape: str, colour: str, hint: str, size: float = 5) -> str:
    """A "square", "triangle" or "ring" around a point; `hint` shows when the pointer is on it."""
    corners = {
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "triangle": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
    }
    if shape == "ring":
        drawn = (
            f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{size:g}" fill="none" stroke="{colour}" '
            'stroke-width="2.5"/>'
        )
    else:
        path = "L".join(f"{x + size * dx:.2f} {y + size * dy:.2f}" for dx, dy in corners[shape])
        drawn = f'<path d="M{path}Z" fill="{colour}" stroke="#333333" stroke-width="0.6"/>'
    return f"<g><title>{escape(hint)}</title>{drawn}</g>"
