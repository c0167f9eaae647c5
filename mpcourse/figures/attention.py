"""Attention maps: who looks at whom, one square map per head."""

from collections.abc import Sequence
from html import escape

from torch import Tensor

from mpcourse.figures import svg

CELL, GAP, TOP, LEFT = 11, 26, 42, 26


def attention_picture(weights: Tensor, words: str, names: Sequence[str] = ()) -> svg.Picture:
    """One map per head: a row looks at the columns; the darker, the more.

    Args:
        weights: (heads, T, T), rows that sum to 1.
        words: T characters, written at rows and columns.
        names: What stands above each map; "head 0", "head 1" and so on where none is given.

    Raises:
        ValueError: There are not as many characters as rows.
    """
    heads, size, _ = weights.shape
    if len(words) != size:
        raise ValueError(f"{len(words)} characters for {size} rows")
    names = names or [f"head {head}" for head in range(heads)]
    title = f"attention of {heads} heads over {size} characters"
    side = size * CELL
    shapes = []
    for head, name in enumerate(names):
        x = LEFT + head * (side + GAP)
        shapes.append(svg.text(x, 16, name, size=13))
        shapes += [
            svg.text(x + (i + 0.5) * CELL, TOP - 5, c, size=9, anchor="middle")
            for i, c in enumerate(words)
        ]
        shapes += [
            svg.text(x - 4, TOP + (i + 0.8) * CELL, c, size=9, anchor="end")
            for i, c in enumerate(words)
        ]
        shapes += [_cell(x, row, head, weights, words, col) for row in range(size)
                   for col in range(row + 1)]  # fmt: skip
        frame = [(x, TOP), (x + side, TOP), (x + side, TOP + side), (x, TOP + side), (x, TOP)]
        shapes.append(svg.polyline(frame, colour="#888888", width=1))
    description = "; ".join(
        f"{name} looks most {_where(part)}" for name, part in zip(names, weights, strict=True)
    )
    width = LEFT + heads * (side + GAP)
    return svg.picture(shapes, (width, TOP + side + 10), title=title, description=description)


def _cell(x: float, row: int, head: int, weights: Tensor, words: str, column: int) -> str:
    share = weights[head, row, column].item()
    light = 1 - share  # white at 0, the blue of device A at 1
    colour = f"rgb({round(255 * light)},{round(114 + 141 * light)},{round(178 + 77 * light)})"
    hint = f"{words[row]!r} looks at {words[column]!r}: {share:.0%}"
    place = f'x="{x + column * CELL}" y="{TOP + row * CELL}" width="{CELL}" height="{CELL}"'
    return f'<rect {place} fill="{colour}"><title>{escape(hint)}</title></rect>'


def _where(weights: Tensor) -> str:
    """How far back the rows look most, on average; not so far that few rows could."""
    shares = [weights.diagonal(-back).mean().item() for back in range(len(weights) // 2 + 1)]
    back = shares.index(max(shares))
    return f"{back} back: {shares[back]:.0%}" if back else f"at itself: {shares[0]:.0%}"
