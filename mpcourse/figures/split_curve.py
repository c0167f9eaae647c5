"""Step time over split size, predicted and measured, and one step above it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpcourse.figures import svg
from mpcourse.figures.marks import levels, ticks
from mpcourse.figures.timelines import Rows
from mpcourse.schedules.timeline import Timeline

WIDTH, LEFT, RIGHT = 680, 96, 24
HEIGHT = 190  # of the curve's field
WORDS = {
    "predicted": "pipeline, predicted (simulated)",
    "measured": "pipeline (measured here)",
    "whole": "one device, whole batch (measured here)",
}
LOOKS = {
    "predicted": {"colour": svg.COLOURS[0]},
    "measured": {"shape": "square", "colour": svg.COLOURS[1]},
}
LEVELS = [  # of one height for all sizes: the whole batch first
    {"colour": "#333333", "width": 1.5, "dashes": "7 4"},
    {"colour": svg.COLOURS[3], "width": 1.5, "dashes": "2 3"},
    {"colour": svg.COLOURS[5], "width": 1.5, "dashes": "12 3 2 3"},
]


@dataclass(frozen=True)
class SplitCurve:
    """Step times in seconds by split size.

    Attributes:
        predicted: Simulated steps of the pipeline, one or more sizes.
        measured: Measured steps of the pipeline, for some of these sizes.
        whole_s: Measured step of one device with the whole batch.
        others: Measured steps of other ways without a split size, by name: two at most.
    """

    predicted: Mapping[int, float]
    measured: Mapping[int, float] = field(default_factory=dict)
    whole_s: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.predicted:
            raise ValueError("predicted is empty; a curve needs at least one split size")
        if extra := sorted(set(self.measured) - set(self.predicted)):
            raise ValueError(f"measured has sizes without a prediction: {extra}")


def split_curve_picture(curve: SplitCurve) -> svg.Picture:
    """Draw the curve: predicted as a line, measured as marks.

    Args:
        curve: What to draw.
    """
    shapes, spoken, bottom = _curve(curve, 8, None)
    title = "Step time over split size"
    return svg.picture(shapes, (WIDTH, bottom), title=title, description="; ".join(spoken))


def split_picture(
    curve: SplitCurve, chosen: int, timeline: Timeline, device_names: Sequence[str]
) -> svg.Picture:
    """Draw one simulated step, and below it the curve with a ring at its split size.

    Args:
        curve: Step times by split size.
        chosen: The split size of the step.
        timeline: The simulated step, in seconds.
        device_names: One name per device.

    Raises:
        ValueError: The chosen size has no prediction, or there are more or fewer names than
            devices.
    """
    if chosen not in curve.predicted:
        raise ValueError(f"split size {chosen} has no prediction; got {sorted(curve.predicted)}")
    place = {"left": LEFT, "top": 34, "height": 32, "width": WIDTH - LEFT - RIGHT - 30}
    rows = Rows(timeline, device_names, **place)
    pieces = len({event.action.microbatch_index for event in timeline.events})
    headline = (
        f"simulated; split size {chosen}, {pieces} micro-batch{'es' * (pieces > 1)}: "
        f"{timeline.makespan * 1e3:.0f} ms, {timeline.bubble_fraction:.0%} idle"
    )
    shapes = [svg.text(LEFT, 22, headline), *rows.shapes()]
    more, said, bottom = _curve(curve, rows.bottom + 34, chosen)
    title = f"A step with split size {chosen}, and step time over split size"
    words = "; ".join([headline, *said])
    return svg.picture([*shapes, *more], (WIDTH, bottom), title=title, description=words)


def _curve(curve: SplitCurve, top: float, chosen: int | None) -> tuple[list[str], list[str], float]:
    """The shapes of the curve below `top`, what it says in words, and where it ends."""
    drawn = {name: times for name in LOOKS if (times := getattr(curve, name))}
    spoken = [
        f"{WORDS[name]}: " + ", ".join(f"{n}: {_ms(values[n])}" for n in sorted(values))
        for name, values in drawn.items()
    ]
    flat = {} if curve.whole_s is None else {WORDS["whole"]: curve.whole_s}
    flat |= {f"{name} (measured here)": seconds for name, seconds in curve.others.items()}
    looks = dict(zip(flat, LEVELS[curve.whole_s is None :], strict=False))
    spoken += [f"{words}: {_ms(seconds)}" for words, seconds in flat.items()]
    keys = {WORDS[name]: LOOKS[name] for name in drawn} | looks
    times = [seconds for values in drawn.values() for seconds in values.values()]
    highest = 1.05 * max([*times, *flat.values()]) or 1.0
    foot = top + 18 * len(keys) + 12 + HEIGHT
    sizes = sorted(curve.predicted)
    reach = math.log(sizes[-1] / sizes[0]) or 1.0

    def at(size: int, seconds: float) -> tuple[float, float]:
        x = LEFT + math.log(size / sizes[0]) / reach * (WIDTH - LEFT - RIGHT)
        return x, foot - seconds / highest * HEIGHT

    shapes = []
    for row, (words, look) in enumerate(keys.items()):
        y = top + 8 + 18 * row
        shapes += [_key(look, LEFT + 12, y), svg.text(LEFT + 32, y, words, size=12, middle=True)]
    right = WIDTH - RIGHT
    shapes.append(svg.line(LEFT, foot, right, foot))
    shapes += ticks(foot, [(at(size, 0.0)[0], str(size)) for size in _numbered(curve)])
    shapes.append(svg.text((LEFT + right) / 2, foot + 37, "split size (samples)", size=12))
    quarters = [f"{highest * q / 4 * 1e3:.0f}" + " ms" * (q == 4) for q in range(5)]
    heights = [(foot - HEIGHT * q / 4, words) for q, words in enumerate(quarters)]
    shapes += levels(LEFT, right, heights)
    for words, look in looks.items():
        y = at(sizes[0], flat[words])[1]
        shapes.append(svg.polyline([(LEFT, y), (right, y)], **look))
    shapes.append(svg.polyline([at(n, curve.predicted[n]) for n in sizes], **LOOKS["predicted"]))
    for size, seconds in curve.measured.items():
        hint = f"{WORDS['measured']}, split size {size}: {_ms(seconds)}"
        shapes.append(svg.mark(*at(size, seconds), hint=hint, **LOOKS["measured"]))
    if chosen is not None:
        x, y = at(chosen, curve.predicted[chosen])
        hint = f"split size {chosen}: predicted {_ms(curve.predicted[chosen])}"
        shapes.append(svg.line(x, y, x, foot, colour="#D55E00"))
        shapes.append(svg.mark(x, y, shape="ring", colour="#D55E00", hint=hint, size=9))
    return shapes, spoken, foot + 44


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _key(look: dict, x: float, y: float) -> str:
    """How a line or a mark looks, in the legend."""
    if "shape" in look:
        return svg.mark(x, y, hint=look["shape"], **look)
    return svg.polyline([(x - 12, y), (x + 12, y)], **look)


def _numbered(curve: SplitCurve) -> list[int]:
    """The measured sizes; where nothing is measured, each about twice the one before."""
    if curve.measured:
        return sorted(curve.measured)
    chosen: list[int] = []
    for size in sorted(curve.predicted):
        if not chosen or size >= 2 * chosen[-1]:
            chosen.append(size)
    return chosen
