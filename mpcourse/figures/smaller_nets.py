"""A net made smaller by pruning: its weights, their bytes, its accuracy."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from mpcourse.figures import svg
from mpcourse.figures.marks import levels, ticks

BLUE, ORANGE, SKY, RED = (svg.COLOURS[index] for index in (0, 1, 4, 5))
GONE = "#dddddd"
SHADES = ("#ffffff", "#d9e6ef", "#a9c9de", "#6fa5c8", "#3c80ac", "#0b4f7d")
BOUNDS = (0.0, 0.02, 0.08, 0.2, 0.5)  # a shade for 0, and one above each of the others
TOP, PANEL = 48, 150  # of the upper panels: where they begin, and how high they are
WIDTH, LEFT, CURVE, FOOT = 760, 60, 510, 420  # of the sheet; of the field of accuracies below

Drawn = tuple[list[str], str]  # shapes, and what they say in words


@dataclass(frozen=True)
class SparsityStudy:
    """A net pruned to several sparsities: plain numbers, ready to be drawn.

    Attributes:
        weights: How many weights the net has.
        reach: The histogram goes from -reach to reach.
        every: Weights in each of its bins.
        kept: Sparsity -> those of them that are not pruned.
        inputs: Sparsity -> kept weights of each input of the first layer, a square number of them.
        outputs: How many weights an input has before pruning.
        accuracies: Sparsity -> accuracy, 0 to 1.
        random: The same with weights pruned at random.
        sizes: Sparsity -> format -> bytes on disk.
    """

    weights: int
    reach: float
    every: Sequence[int]
    kept: Mapping[float, Sequence[int]]
    inputs: Mapping[float, Sequence[int]]
    outputs: int
    accuracies: Mapping[float, float]
    random: Mapping[float, float]
    sizes: Mapping[float, Mapping[str, int]]


def sparsity_picture(study: SparsityStudy, sparsity: float) -> svg.Picture:
    """Draw what a net consists of at one sparsity, and where that lies on the curve of accuracies.

    Args:
        study: The net at several sparsities, measured here.
        sparsity: One of them.

    Raises:
        ValueError: The sparsity is not one of the study.
    """
    if sparsity not in study.kept:
        known = ", ".join(f"{each:g}" for each in study.kept)
        raise ValueError(f"sparsities are {known}; got {sparsity!r}")
    headline = (
        f"measured here; {sparsity:.0%} of {study.weights:,} weights are zero: "
        f"{study.accuracies[sparsity]:.1%} of the held-out digits right "
        f"({study.random[sparsity]:.1%} with random ones)"
    )
    panels = (
        _kept_weights(study, sparsity, 16),
        _mask(study, sparsity, 290),
        _sizes(study, sparsity, 480),
        _over_sparsity(study, sparsity),
    )
    return _sheet(f"A net with {sparsity:.0%} of its weights zero", headline, panels)


def _sheet(title: str, headline: str, panels: Iterable[Drawn]) -> svg.Picture:
    shapes, spoken = [svg.text(16, 24, headline)], [headline]
    for more, said in panels:
        shapes += more
        spoken.append(said)
    return svg.picture(shapes, (WIDTH, 470), title=title, description="; ".join(spoken))


def _scale(x: float, width: float, low: str, middle: str, high: str) -> list[str]:
    """Words at the ends and in the middle, below a histogram."""
    places = ((0, low, "start"), (width / 2, middle, "middle"), (width, high, "end"))
    y = TOP + PANEL + 16
    return [svg.text(x + a, y, words, size=11, anchor=anchor) for a, words, anchor in places]


def _said(sizes: Mapping[str, int]) -> str:
    return "bytes: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items())


# A net at one sparsity


def _kept_weights(study: SparsityStudy, sparsity: float, x: float) -> Drawn:
    """Weights by their value: all in grey, those that are kept in front of them."""
    shapes = [svg.text(x, TOP, "weights: kept (blue), zero (grey)", size=12)]
    foot = TOP + PANEL
    width, scale = 250 / len(study.every), (PANEL - 20) / max(study.every)
    for counts, colour, what in (
        (study.every, GONE, "all weights"),
        (study.kept[sparsity], BLUE, "weights that are kept"),
    ):
        points = [(x, foot)]
        for index, number in enumerate(counts):
            top = foot - number * scale
            points += [(x + index * width, top), (x + (index + 1) * width, top)]
        shapes.append(svg.area([*points, (x + 250, foot)], colour=colour, hint=what))
    shapes.append(svg.line(x, foot, x + 250, foot))
    shapes += _scale(x, 250, f"{-study.reach:+.2f}", "0", f"{study.reach:+.2f}")
    kept = sum(study.kept[sparsity])
    return shapes, f"{kept:,} of the {sum(study.every):,} weights in the histogram are kept"


def _mask(study: SparsityStudy, sparsity: float, x: float) -> Drawn:
    """The inputs of the first layer as a square: the darker, the more weights an input keeps."""
    counts = study.inputs[sparsity]
    side = math.isqrt(len(counts))
    y, cell = TOP + 10, PANEL / side
    shapes = [svg.text(x, TOP, "mask: weights left of a pixel", size=12)]
    groups: dict[int, list[int]] = {}
    for index, number in enumerate(counts):
        shade = 0 if not number else sum(number / study.outputs > bound for bound in BOUNDS)
        groups.setdefault(shade, []).append(index)
    shapes.append(_squares(range(len(counts)), side, (x, y, cell), SHADES[0], "no weight"))
    for shade, places in sorted(groups.items()):
        if shade:
            numbers = [counts[place] for place in places]
            hint = f"{min(numbers)} to {max(numbers)} of {study.outputs} weights left"
            shapes.append(_squares(places, side, (x, y, cell), SHADES[shade], hint))
    frame = [(x, y), (x + PANEL, y), (x + PANEL, y + PANEL), (x, y + PANEL), (x, y)]
    shapes.append(svg.polyline(frame, colour="#888888", width=1))
    empty, most = sum(number == 0 for number in counts), max(counts)
    words = f"{empty} pixels unread; most: {most}"
    shapes.append(svg.text(x, y + PANEL + 16, words, size=11))
    return shapes, f"{empty} of {len(counts)} pixels are not read, the most read has {most} weights"


def _squares(
    places: Sequence[int], side: int, corner: tuple[float, float, float], colour: str, hint: str
) -> str:
    """Many equal squares of a grid as one path: quick to build and to draw."""
    x, y, cell = corner
    moves = (
        f"M{x + place % side * cell:.1f} {y + place // side * cell:.1f}"
        f"h{cell:.1f}v{cell:.1f}h-{cell:.1f}z"
        for place in places
    )
    return f'<g><title>{escape(hint)}</title><path d="{"".join(moves)}" fill="{colour}"/></g>'


def _sizes(study: SparsityStudy, sparsity: float, x: float) -> Drawn:
    """A bar for the bytes of each format, all sparsities on one scale."""
    shapes = [svg.text(x, TOP, "bytes on disk", size=12)]
    sizes = study.sizes[sparsity]
    most = max(size for each in study.sizes.values() for size in each.values())
    row = PANEL / len(sizes)
    for index, (name, size) in enumerate(sizes.items()):
        top = TOP + 12 + index * row
        middle = top + row / 2 - 2
        width = max(120 * size / most, 1.0)
        hint = f"{name}: {size:,} bytes"
        shapes.append(svg.text(x + 66, middle, name, size=11, anchor="end", middle=True))
        shapes.append(svg.box(x + 72, top, width, row - 6, colour=SKY, hint=hint))
        words = f"{size / 1e3:,.0f} kB"
        shapes.append(svg.text(x + 78 + width, middle, words, size=11, middle=True))
    return shapes, _said(sizes)


def _over_sparsity(study: SparsityStudy, chosen: float) -> Drawn:
    """The accuracies, also with random weights pruned, over the logarithm of what is left."""
    deepest = math.log(1 - max(study.kept)) or -1.0

    def at(sparsity: float) -> float:
        return LEFT + math.log(1 - sparsity) / deepest * CURVE

    numbered: list[float] = []  # those with room for their number
    for each in sorted(study.kept):
        if not numbered or at(each) - at(numbered[-1]) > 0.06 * CURVE:
            numbered.append(each)
    lines = {"these scores": study.accuracies, "random weights": study.random}
    shapes = _accuracies(
        ("accuracy over sparsity", "weights that are zero"),
        {name: dict(sorted(values.items())) for name, values in lines.items()},
        at,
        {each: f"{each:.0%}" for each in numbered},
        hint=lambda name, each: f"{name}, {each:.0%} zero",
        tick=4,
    )
    for values in lines.values():
        shapes.append(_ring(at(chosen), values[chosen], f"{chosen:.0%} zero: {values[chosen]:.1%}"))
    pairs = sorted(study.accuracies.items())
    said = ", ".join(f"{sparsity:.0%}: {accuracy:.1%}" for sparsity, accuracy in pairs)
    return shapes, f"accuracy by sparsity: {said}"


# The field below


def _accuracies(
    words: tuple[str, str],
    lines: Mapping[str, Mapping[float, float]],
    at: Callable[[float], float],
    numbered: Mapping[float, str],
    *,
    hint: Callable[[str, float], str],
    tick: float,
) -> list[str]:
    """Two lines of accuracies, their names beside them; `words` stand above and below."""
    above, below = words
    quarters = [(FOOT - PANEL * quarter / 4, f"{quarter / 4:.0%}") for quarter in range(5)]
    shapes = [
        svg.text(LEFT, FOOT - PANEL - 12, above, size=12),
        *levels(LEFT, LEFT + CURVE, quarters),
        *ticks(FOOT, [(at(each), number) for each, number in numbered.items()], length=tick),
        svg.text(LEFT + CURVE / 2, FOOT + 36, below, size=12),
    ]
    looks = ({"shape": "square", "colour": BLUE}, {"shape": "triangle", "colour": ORANGE})
    for row, ((name, values), look) in enumerate(zip(lines.items(), looks, strict=True)):
        points = {each: (at(each), FOOT - PANEL * value) for each, value in values.items()}
        shapes.append(svg.polyline(points.values(), colour=look["colour"]))
        for each, point in points.items():
            said = f"{hint(name, each)}: {values[each]:.1%}"
            shapes.append(svg.mark(*point, hint=said, size=4, **look))
        x, y = LEFT + CURVE + 24, FOOT - PANEL + 20 + 22 * row
        shapes.append(svg.mark(x, y, hint=name, **look))
        shapes.append(svg.text(x + 14, y, name, size=12, middle=True))
    return shapes


def _ring(x: float, accuracy: float, hint: str) -> str:
    """A ring around the chosen point."""
    return svg.mark(x, FOOT - PANEL * accuracy, shape="ring", colour=RED, hint=hint, size=8)
