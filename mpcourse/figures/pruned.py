"""A net at one sparsity: its weights, its mask, its accuracy, its bytes (page `pruning`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from mpcourse.figures import svg
from mpcourse.figures.marks import check_label

KEPT, GONE, RANDOM = "#0072B2", "#dddddd", "#E69F00"
SHADES = ("#ffffff", "#d9e6ef", "#a9c9de", "#6fa5c8", "#3c80ac", "#0b4f7d")
BOUNDS = (0.0, 0.02, 0.08, 0.2, 0.5)  # a shade for 0, and one above each of the others
PANEL = 150  # height of the upper panels
WIDTH, LEFT = 760, 60


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


def sparsity_picture(
    study: SparsityStudy, sparsity: float, *, label: str = "measured here"
) -> svg.Picture:
    """Draw what a net consists of at one sparsity, and where that lies on the curve of accuracies.

    Args:
        study: The net at several sparsities.
        sparsity: One of them.
        label: "measured here", "simulated" or "quoted": where the numbers come from.

    Raises:
        ValueError: The sparsity is not one of the study, or `label` is another.
    """
    check_label(label)
    if sparsity not in study.kept:
        known = ", ".join(f"{each:g}" for each in study.kept)
        raise ValueError(f"sparsities are {known}; got {sparsity!r}")
    headline = (
        f"{label}; {sparsity:.0%} of {study.weights:,} weights are zero: "
        f"{study.accuracies[sparsity]:.1%} of the test digits right "
        f"({study.random[sparsity]:.1%} with random ones)"
    )
    spoken = [headline]
    shapes = [svg.text(16, 24, headline)]
    for draw, x in ((_histogram, 16), (_mask, 290), (_bytes, 480)):
        more, said = draw(study, sparsity, x, 48)
        shapes += more
        spoken.append(said)
    more, said = _curve(study, sparsity, 270)
    title = f"A net with {sparsity:.0%} of its weights zero"
    description = "; ".join([*spoken, said])
    return svg.picture([*shapes, *more], (WIDTH, 470), title=title, description=description)


def _histogram(study: SparsityStudy, sparsity: float, x: float, y: float) -> tuple[list[str], str]:
    """Weights by their value: all in grey, those that are kept in front of them."""
    shapes = [svg.text(x, y, "weights: kept (blue), zero (grey)", size=12)]
    bins, foot = len(study.every), y + PANEL
    width, scale = 250 / bins, (PANEL - 20) / max(study.every)
    for counts, colour, what in (
        (study.every, GONE, "all weights"),
        (study.kept[sparsity], KEPT, "weights that are kept"),
    ):
        points = [(x, foot)]
        for index, number in enumerate(counts):
            top = foot - number * scale
            points += [(x + index * width, top), (x + (index + 1) * width, top)]
        shapes.append(svg.area([*points, (x + 250, foot)], colour=colour, hint=what))
    shapes.append(svg.line(x, foot, x + 250, foot))
    for place, value in ((0, -study.reach), (125, 0.0), (250, study.reach)):
        words = f"{value:+.2f}" if value else "0"
        anchor = {0: "start", 125: "middle", 250: "end"}[place]
        shapes.append(svg.text(x + place, foot + 16, words, size=11, anchor=anchor))
    kept = sum(study.kept[sparsity])
    return shapes, f"{kept:,} of the {sum(study.every):,} weights in the histogram are kept"


def _mask(study: SparsityStudy, sparsity: float, x: float, y: float) -> tuple[list[str], str]:
    """The inputs of the first layer as a square: the darker, the more weights an input keeps."""
    counts = study.inputs[sparsity]
    side = math.isqrt(len(counts))
    cell = PANEL / side
    shapes = [svg.text(x, y, "mask: weights left of a pixel", size=12)]
    groups: dict[int, list[int]] = {}
    for index, number in enumerate(counts):
        shade = 0 if not number else sum(number / study.outputs > bound for bound in BOUNDS)
        groups.setdefault(shade, []).append(index)
    shapes.append(_squares(range(len(counts)), side, (x, y + 10, cell), SHADES[0], "no weight"))
    for shade, places in sorted(groups.items()):
        if shade:
            numbers = [counts[place] for place in places]
            hint = f"{min(numbers)} to {max(numbers)} of {study.outputs} weights left"
            shapes.append(_squares(places, side, (x, y + 10, cell), SHADES[shade], hint))
    frame = [(x, y + 10), (x + PANEL, y + 10), (x + PANEL, y + 10 + PANEL), (x, y + 10 + PANEL)]
    shapes.append(svg.polyline([*frame, frame[0]], colour="#888888", width=1))
    empty, most = sum(number == 0 for number in counts), max(counts)
    words = f"{empty} pixels unread; most: {most}"
    shapes.append(svg.text(x, y + PANEL + 26, words, size=11))
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


def _bytes(study: SparsityStudy, sparsity: float, x: float, y: float) -> tuple[list[str], str]:
    """A bar for each format, all sparsities on one scale."""
    shapes = [svg.text(x, y, "bytes on disk", size=12)]
    sizes = study.sizes[sparsity]
    most = max(size for each in study.sizes.values() for size in each.values())
    row = PANEL / len(sizes)
    for index, (name, size) in enumerate(sizes.items()):
        top = y + 12 + index * row
        width = max(120 * size / most, 1.0)
        hint = f"{name}: {size:,} bytes"
        shapes.append(svg.text(x + 66, top + row / 2 - 2, name, size=11, anchor="end", middle=True))
        shapes.append(svg.box(x + 72, top, width, row - 6, colour="#56B4E9", hint=hint))
        words = f"{size / 1e3:,.0f} kB"
        shapes.append(svg.text(x + 78 + width, top + row / 2 - 2, words, size=11, middle=True))
    return shapes, "bytes: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items())


def _curve(study: SparsityStudy, chosen: float, top: float) -> tuple[list[str], str]:
    """Accuracy over sparsity, with a ring at the chosen one."""
    left, width, height = LEFT, WIDTH - LEFT - 190, 150
    foot = top + height
    deepest = math.log(1 - max(study.kept)) or -1.0

    def at(sparsity: float, accuracy: float) -> tuple[float, float]:
        return left + math.log(1 - sparsity) / deepest * width, foot - accuracy * height

    shapes = [svg.text(left, top - 12, "accuracy over sparsity", size=12)]
    for quarter in range(5):
        value, y = quarter / 4, foot - height * quarter / 4
        shapes.append(svg.line(left, y, left + width, y, colour="#e5e5e5"))
        shapes.append(svg.text(left - 8, y, f"{value:.0%}", size=11, anchor="end", middle=True))
    for sparsity in _ticks(study.kept):
        x, _ = at(sparsity, 0.0)
        shapes.append(svg.line(x, foot, x, foot + 4))
        shapes.append(svg.text(x, foot + 18, f"{sparsity:.0%}", size=11, anchor="middle"))
    shapes.append(svg.text(left + width / 2, foot + 36, "weights that are zero", size=12))
    for values, colour, shape, name in (
        (study.accuracies, KEPT, "square", "this criterion"),
        (study.random, RANDOM, "triangle", "random weights"),
    ):
        points = [at(sparsity, accuracy) for sparsity, accuracy in sorted(values.items())]
        shapes.append(svg.polyline(points, colour=colour))
        for (x, y), (sparsity, accuracy) in zip(points, sorted(values.items()), strict=True):
            hint = f"{name}, {sparsity:.0%} zero: {accuracy:.1%}"
            shapes.append(svg.mark(x, y, shape=shape, colour=colour, hint=hint, size=4))
        row = top + 20 + 22 * (shape == "triangle")
        key = left + width + 24
        shapes.append(svg.mark(key, row, shape=shape, colour=colour, hint=name))
        shapes.append(svg.text(key + 14, row, name, size=12, middle=True))
    for values in (study.accuracies, study.random):
        x, y = at(chosen, values[chosen])
        hint = f"{chosen:.0%} zero: {values[chosen]:.1%}"
        shapes.append(svg.mark(x, y, shape="ring", colour="#D55E00", hint=hint, size=8))
    pairs = sorted(study.accuracies.items())
    said = ", ".join(f"{sparsity:.0%}: {accuracy:.1%}" for sparsity, accuracy in pairs)
    return shapes, f"accuracy by sparsity: {said}"


def _ticks(sparsities: Mapping[float, object]) -> list[float]:
    """Those that have room for their number on the logarithmic axis."""
    ticks: list[float] = []
    deepest = math.log(1 - max(sparsities)) or -1.0
    for sparsity in sorted(sparsities):
        place = math.log(1 - sparsity) / deepest
        if not ticks or place - math.log(1 - ticks[-1]) / deepest > 0.06:
            ticks.append(sparsity)
    return ticks
