"""Step time over split size, predicted and measured, and one step above it (page `pipeline`)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mpcourse.figures import svg
from mpcourse.figures.marks import scaled_unit
from mpcourse.figures.timelines import event_box, time_axis
from mpcourse.schedules.timeline import Timeline

WIDTH, LEFT, RIGHT = 680, 96, 24
HEIGHT = 190  # of the curve's field
BLUE, ORANGE, GREEN = svg.COLOURS[0], svg.COLOURS[1], svg.COLOURS[2]


@dataclass(frozen=True)
class SplitCurve:
    """Step times in seconds by split size.

    Attributes:
        predicted: Simulated steps of the pipeline, one or more sizes.
        measured: Measured steps of the pipeline, for some of these sizes.
        alone: Measured steps of one device with the same micro-batches.
        whole_s: Measured step of one device with the whole batch.
    """

    predicted: Mapping[int, float]
    measured: Mapping[int, float] = field(default_factory=dict)
    alone: Mapping[int, float] = field(default_factory=dict)
    whole_s: float | None = None

    def __post_init__(self) -> None:
        if not self.predicted:
            raise ValueError("predicted is empty; a curve needs at least one split size")
        for name in ("measured", "alone"):
            extra = sorted(set(getattr(self, name)) - set(self.predicted))
            if extra:
                raise ValueError(f"{name} has sizes without a prediction: {extra}")


def split_curve_picture(curve: SplitCurve, *, chosen: int | None = None) -> svg.Picture:
    """Draw the curve: predicted as a line, measured as marks.

    Args:
        curve: What to draw.
        chosen: A split size to put a ring around.
    """
    shapes, spoken, bottom = _curve(curve, 8, chosen)
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
    if len(device_names) != timeline.num_devices:
        raise ValueError(f"{timeline.num_devices} devices need names; got {len(device_names)}")
    scale, unit = scaled_unit(timeline.makespan, "ms")
    pieces = len({event.action.microbatch_index for event in timeline.events})
    headline = (
        f"simulated; split size {chosen}, {pieces} micro-batch{'es' * (pieces > 1)}: "
        f"{timeline.makespan * 1e3:.0f} ms, {timeline.bubble_fraction:.0%} idle"
    )
    shapes, spoken = [svg.text(LEFT, 22, headline)], [headline]
    pixels = (WIDTH - LEFT - RIGHT - 30) / (timeline.makespan or 1.0)
    for index, name in enumerate(device_names):
        shapes.append(svg.text(LEFT - 8, 47 + 32 * index, name, size=12, anchor="end", middle=True))
    for event in timeline.events:
        place = (LEFT, 34 + 32 * event.device_index, pixels)
        shapes.append(event_box(event, place, device_names, scale, unit)[0])
    bottom = 34 + 32 * len(device_names)
    shapes += time_axis(LEFT, bottom, WIDTH - LEFT - RIGHT - 30, timeline.makespan * scale, unit)
    more, said, bottom = _curve(curve, bottom + 34, chosen)
    title = f"A step with split size {chosen}, and step time over split size"
    words = "; ".join([*spoken, *said])
    return svg.picture([*shapes, *more], (WIDTH, bottom), title=title, description=words)


def _curve(curve: SplitCurve, top: float, chosen: int | None) -> tuple[list[str], list[str], float]:
    """The shapes of the curve below `top`, what it says in words, and where it ends."""
    sizes = sorted(curve.predicted)
    times = [*curve.predicted.values(), *curve.measured.values(), *curve.alone.values()]
    highest = 1.05 * max([*times, curve.whole_s or 0.0]) or 1.0
    legend = _legend(curve)
    field_top = top + 18 * len(legend) + 12
    foot = field_top + HEIGHT
    reach = math.log(sizes[-1] / sizes[0]) or 1.0

    def at(size: int, seconds: float) -> tuple[float, float]:
        x = LEFT + math.log(size / sizes[0]) / reach * (WIDTH - LEFT - RIGHT)
        return x, foot - seconds / highest * HEIGHT

    shapes = []
    for row, (shape, words) in enumerate(legend):
        y = top + 8 + 18 * row
        shapes += [_key(shape, LEFT + 12, y), svg.text(LEFT + 32, y, words, size=12, middle=True)]
    shapes += _axes(_ticks(curve), highest, at, foot)
    if curve.whole_s is not None:
        ends = [(LEFT, at(sizes[0], curve.whole_s)[1]), (WIDTH - RIGHT, at(1, curve.whole_s)[1])]
        shapes.append(svg.polyline(ends, colour="#333333", width=1.5, dashes="7 4"))
    shapes.append(svg.polyline([at(n, curve.predicted[n]) for n in sizes], colour=BLUE))
    series = (("alone", "triangle", GREEN), ("measured", "square", ORANGE))
    for name, shape, colour in series:
        for size, seconds in getattr(curve, name).items():
            hint = f"{WORDS[name]}, split size {size}: {seconds * 1e3:.0f} ms"
            shapes.append(svg.mark(*at(size, seconds), shape=shape, colour=colour, hint=hint))
    if chosen is not None:
        x, y = at(chosen, curve.predicted[chosen])
        hint = f"split size {chosen}: predicted {curve.predicted[chosen] * 1e3:.0f} ms"
        shapes.append(svg.line(x, y, x, foot, colour="#D55E00"))
        shapes.append(svg.mark(x, y, shape="ring", colour="#D55E00", hint=hint, size=9))
    return shapes, _spoken(curve), foot + 44


WORDS = {
    "predicted": "pipeline, predicted (simulated)",
    "measured": "pipeline (measured here)",
    "alone": "one device, same micro-batches (measured here)",
    "whole": "one device, whole batch (measured here)",
}


def _legend(curve: SplitCurve) -> list[tuple[str, str]]:
    rows = [("line", WORDS["predicted"])]
    rows += [("square", WORDS["measured"])] if curve.measured else []
    rows += [("triangle", WORDS["alone"])] if curve.alone else []
    return rows + ([("dashes", WORDS["whole"])] if curve.whole_s is not None else [])


def _key(shape: str, x: float, y: float) -> str:
    if shape in ("square", "triangle"):
        colour = ORANGE if shape == "square" else GREEN
        return svg.mark(x, y, shape=shape, colour=colour, hint=shape)
    ends = [(x - 12, y), (x + 12, y)]
    if shape == "line":
        return svg.polyline(ends, colour=BLUE)
    return svg.polyline(ends, colour="#333333", width=1.5, dashes="7 4")


def _ticks(curve: SplitCurve) -> list[int]:
    """The measured sizes; where nothing is measured, each about twice the one before."""
    if curve.measured or curve.alone:
        return sorted({*curve.measured, *curve.alone})
    ticks: list[int] = []
    for size in sorted(curve.predicted):
        if not ticks or size >= 2 * ticks[-1]:
            ticks.append(size)
    return ticks


def _axes(
    ticks: Sequence[int],
    highest: float,
    at: Callable[[int, float], tuple[float, float]],
    foot: float,
) -> list[str]:
    right = WIDTH - RIGHT
    shapes = [svg.line(LEFT, foot, right, foot)]
    for size in ticks:
        x, _ = at(size, 0.0)
        shapes.append(svg.line(x, foot, x, foot + 5))
        shapes.append(svg.text(x, foot + 19, str(size), size=11, anchor="middle"))
    shapes.append(svg.text((LEFT + right) / 2, foot + 37, "split size (samples)", size=12))
    for quarter in range(5):
        seconds = highest * quarter / 4
        y = foot - HEIGHT * quarter / 4
        shapes.append(svg.line(LEFT, y, right, y, colour="#e5e5e5"))
        words = f"{seconds * 1e3:.0f}" + (" ms" if quarter == 4 else "")
        shapes.append(svg.text(LEFT - 8, y, words, size=11, anchor="end", middle=True))
    return shapes


def _spoken(curve: SplitCurve) -> list[str]:
    spoken = []
    for name in ("predicted", "measured", "alone"):
        values = getattr(curve, name)
        if values:
            each = ", ".join(f"{n}: {values[n] * 1e3:.0f} ms" for n in sorted(values))
            spoken.append(f"{WORDS[name]}: {each}")
    if curve.whole_s is not None:
        spoken.append(f"{WORDS['whole']}: {curve.whole_s * 1e3:.0f} ms")
    return spoken
