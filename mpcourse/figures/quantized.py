"""A net in a few bits: its integers, their errors, its accuracy, its bytes.

Page `quantization`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpcourse.figures import svg
from mpcourse.figures.marks import check_label

SCALES = ("per channel", "per tensor")
COLOURS = {"per channel": "#0072B2", "per tensor": "#E69F00"}
SHAPES = {"per channel": "square", "per tensor": "triangle"}
WIDTH, LEFT, PANEL = 760, 60, 150


class Rounded(NamedTuple):
    """A net with its weights in so many bits, in one way.

    Attributes:
        integers: How many weights have become each integer, from the smallest to the largest.
        errors: How many weights are off by how much: bins from minus to plus half a step.
        half_step: The largest half step, in the unit of the weights.
        accuracy: 0 to 1.
    """

    integers: Sequence[int]
    errors: Sequence[int]
    half_step: float
    accuracy: float


@dataclass(frozen=True)
class BitsStudy:
    """A net in several numbers of bits: plain numbers, ready to be drawn.

    Attributes:
        weights: How many weights the net has.
        accuracy: In float32, 0 to 1.
        rounded: (bits, "per channel" or "per tensor") -> what has become of it.
    """

    weights: int
    accuracy: float
    rounded: Mapping[tuple[int, str], Rounded]


def bits_picture(
    study: BitsStudy, bits: int, scales: str = "per channel", *, label: str = "measured here"
) -> svg.Picture:
    """Draw what a net consists of in so many bits, and where that lies among the accuracies.

    Args:
        study: The net in several numbers of bits.
        bits: One of them.
        scales: "per channel" or "per tensor".
        label: "measured here", "simulated" or "quoted": where the numbers come from.

    Raises:
        ValueError: The study does not have these bits and scales, or `label` is another.
    """
    check_label(label)
    if (bits, scales) not in study.rounded:
        known = ", ".join(f"{b} {s}" for b, s in study.rounded)
        raise ValueError(f"the study has {known}; got {bits} {scales}")
    found = study.rounded[bits, scales]
    headline = (
        f"{label}; {bits} bits, scales {scales}: {found.accuracy:.1%} of the test digits right "
        f"({study.accuracy:.1%} in float32)"
    )
    shapes, spoken = [svg.text(16, 24, headline)], [headline]
    for draw, x in ((_integers, 16), (_errors, 290), (_bytes, 520)):
        more, said = draw(study, bits, found, x, 48)
        shapes += more
        spoken.append(said)
    more, said = _curve(study, bits, scales, 270)
    title = f"A net with weights of {bits} bits, scales {scales}"
    description = "; ".join([*spoken, said])
    return svg.picture([*shapes, *more], (WIDTH, 470), title=title, description=description)


def _integers(
    study: BitsStudy, bits: int, found: Rounded, x: float, y: float
) -> tuple[list[str], str]:
    """A bar for each integer that weights can become."""
    largest = len(found.integers) // 2
    zeros = found.integers[largest] / study.weights
    shapes = [svg.text(x, y, f"weights by their integer; 0: {zeros:.0%}", size=12)]
    shapes += _bars(found.integers, (x, y + PANEL, 250), "#0072B2", "weights by their integer")
    for place, words, anchor in (
        (0, f"-{largest}", "start"),
        (125, "0", "middle"),
        (250, f"+{largest}", "end"),
    ):
        shapes.append(svg.text(x + place, y + PANEL + 16, words, size=11, anchor=anchor))
    said = f"{len(found.integers)} integers from {-largest} to {largest}, {zeros:.1%} of them 0"
    return shapes, said


def _errors(
    study: BitsStudy, bits: int, found: Rounded, x: float, y: float
) -> tuple[list[str], str]:
    """How far weights are from their integer, in steps."""
    shapes = [svg.text(x, y, "errors, in steps", size=12)]
    shapes += _bars(found.errors, (x, y + PANEL, 200), "#009E73", "weights by their error")
    for place, words, anchor in ((0, "-1/2", "start"), (100, "0", "middle"), (200, "+1/2", "end")):
        shapes.append(svg.text(x + place, y + PANEL + 16, words, size=11, anchor=anchor))
    words = f"half a step: at most {found.half_step:.2g}"
    shapes.append(svg.text(x + 100, y + PANEL + 34, words, size=11, anchor="middle"))
    return shapes, words


def _bars(
    counts: Sequence[int], corner: tuple[float, float, float], colour: str, hint: str
) -> list[str]:
    """Counts as one filled shape above a line, the highest as high as the panel."""
    x, foot, wide = corner
    width, scale = wide / len(counts), (PANEL - 20) / max(*counts, 1)
    gap = 0.15 * width if len(counts) < 32 else 0.0
    points = [(x, foot)]
    for index, number in enumerate(counts):
        left, right = x + index * width + gap, x + (index + 1) * width - gap
        points += [(left, foot), (left, foot - number * scale)]
        points += [(right, foot - number * scale), (right, foot)]
    shape = svg.area([*points, (x + wide, foot)], colour=colour, hint=hint)
    return [shape, svg.line(x, foot, x + wide, foot)]


def _bytes(
    study: BitsStudy, bits: int, found: Rounded, x: float, y: float
) -> tuple[list[str], str]:
    """Bytes of the weights: as floats, as int8, and packed without gaps."""
    sizes = {
        "float32": 4 * study.weights,
        "int8": study.weights,
        f"{bits} bits, packed": -(-bits * study.weights // 8),
    }
    shapes = [svg.text(x, y, "bytes of the weights", size=12)]
    for index, (name, size) in enumerate(sizes.items()):
        top = y + 16 + 48 * index
        words = f"{name}: {size:,}"
        shapes.append(svg.text(x, top + 10, words, size=11))
        width = max(210 * size / sizes["float32"], 1.0)
        shapes.append(svg.box(x, top + 16, width, 18, colour="#56B4E9", hint=f"{words} bytes"))
    return shapes, "bytes: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items())


def _curve(study: BitsStudy, bits: int, scales: str, top: float) -> tuple[list[str], str]:
    """Accuracy over bits, a line for each way, with a ring at the chosen one."""
    left, width, height = LEFT, WIDTH - LEFT - 190, 150
    foot = top + height
    every = sorted({each for each, _ in study.rounded})
    span = max(every[-1] - every[0], 1)

    def at(each: int, accuracy: float) -> tuple[float, float]:
        return left + (each - every[0]) / span * width, foot - accuracy * height

    shapes = [svg.text(left, top - 12, "accuracy over bits", size=12)]
    for quarter in range(5):
        value, y = quarter / 4, foot - height * quarter / 4
        shapes.append(svg.line(left, y, left + width, y, colour="#e5e5e5"))
        shapes.append(svg.text(left - 8, y, f"{value:.0%}", size=11, anchor="end", middle=True))
    for each in every:
        x, _ = at(each, 0.0)
        shapes.append(svg.text(x, foot + 18, str(each), size=11, anchor="middle"))
    shapes.append(svg.text(left + width / 2, foot + 36, "bits of a weight", size=12))
    said = []
    for row, name in enumerate(SCALES):
        values = {b: r.accuracy for (b, s), r in sorted(study.rounded.items()) if s == name}
        points = [at(*pair) for pair in values.items()]
        shapes.append(svg.polyline(points, colour=COLOURS[name]))
        for (x, y), (each, accuracy) in zip(points, values.items(), strict=True):
            hint = f"{each} bits, {name}: {accuracy:.1%}"
            style = {"shape": SHAPES[name], "colour": COLOURS[name]}
            shapes.append(svg.mark(x, y, hint=hint, size=4, **style))
        key = left + width + 24
        shapes.append(svg.mark(key, top + 20 + 22 * row, hint=name, **style))
        shapes.append(svg.text(key + 14, top + 20 + 22 * row, name, size=12, middle=True))
        said.append(f"{name} " + ", ".join(f"{b}: {a:.1%}" for b, a in values.items()))
    x, y = at(bits, study.rounded[bits, scales].accuracy)
    shapes.append(svg.mark(x, y, shape="ring", colour="#D55E00", hint="chosen", size=8))
    return shapes, "accuracy by bits: " + "; ".join(said)
