"""Who worked when, and what each device held: drawings of measured and of simulated timelines."""

import math
from collections.abc import Mapping, Sequence

from mpcourse.figures import svg
from mpcourse.figures.marks import check_label, count, device_colour, scaled_unit
from mpcourse.schedules.timeline import Timeline

# Of a pipeline's actions: sky blue, orange, yellow, green
KIND_COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73"}
HELD = "#bbbbbb"
LEGIBLE = 18  # pixels: a narrower box has room for the kind of its action only
STRIP = 22  # pixels: the height of what a device holds


def timeline_picture(
    timeline: Timeline,
    device_names: Sequence[str],
    *,
    label: str,
    unit: str = "ms",
    caption: str | None = None,
    row: str = "device",
    horizon: float = 0.0,
    colours: Mapping[object, int] | None = None,
) -> svg.Picture:
    """Draw who worked when: a row per device, a box per event, idle time left white.

    A pipeline's actions are coloured by kind (F, B, I, W), other jobs by device.

    Args:
        timeline: Measured (in seconds) or simulated.
        device_names: One name per device.
        label: "measured here", "simulated" or "quoted": where the times come from.
        unit: "ms" for a timeline in seconds (from one second on it draws seconds); any other word
            is the timeline's own unit.
        caption: What stands above the rows; the idle share of the devices when `None`.
        row: What a row is, in the title: jobs of one device that overlap need a row each.
        horizon: How far the axis reaches at least, in the timeline's unit.
        colours: Action -> the index of the device whose colour it has, instead of its own device's.

    Raises:
        ValueError: `label` is another, or there are more or fewer names than devices.
    """
    check_label(label)
    rows = Rows(timeline, device_names, top=40, height=34, width=560, unit=unit, horizon=horizon)
    caption = caption or _idle_share(timeline)
    shapes = [svg.text(rows.left, 24, f"{label}; {caption}")]
    for index in range(timeline.num_devices):
        middle = rows.y(index) + 13
        shapes.append(rows.name(index))
        shapes.append(svg.line(rows.left, middle, rows.left + rows.width, middle, colour="#dddddd"))
    boxes, spoken = rows.boxes(colours=colours)
    title = f"Timeline of {count(timeline.num_devices, row)} ({label})"
    size = (rows.left + rows.width + 80, rows.bottom + 34)
    description = "; ".join([*spoken, caption])
    return svg.picture([*shapes, *boxes, *rows.axis()], size, title=title, description=description)


def memory_picture(
    timeline: Timeline,
    device_names: Sequence[str],
    *,
    label: str,
    unit: str = "ms",
    caption: str | None = None,
    until: float | None = None,
    activation_size: float = 1.0,
    horizon: float = 0.0,
) -> svg.Picture:
    """Draw who worked when, and below each row how many activations that device held.

    Args:
        timeline: Of a pipeline, measured (in seconds) or simulated.
        device_names: One name per device.
        label: "measured here", "simulated" or "quoted": where the times come from.
        unit: As for `timeline_picture`.
        caption: As for `timeline_picture`.
        until: Draw what had happened by then, in the timeline's unit, and say what is held at that
            moment; everything when `None`.
        activation_size: How much one stage-micro-batch counts: 0.5 where two stages share what was
            one device's part of the model.
        horizon: How far the axis reaches at least, in the timeline's unit: pictures of a timeline
            that grows keep their scale.

    Raises:
        ValueError: `label` is another, or there are more or fewer names than devices.
    """
    check_label(label)
    rows = Rows(timeline, device_names, top=40, height=58, width=680, unit=unit, horizon=horizon)
    caption = caption or _idle_share(timeline)
    now = rows.end if until is None else min(until, rows.end)
    boxes, spoken = rows.boxes(until=now)
    shapes = [svg.text(rows.left, 24, f"{label}; {caption}"), *boxes]
    held = timeline.activations_in_flight
    highest = max(number for steps in held for _, number in steps) or 1
    for index, name in enumerate(device_names):
        steps = [step for step in held[index] if step[0] <= now]
        words = f"at most {max(number for _, number in steps) * activation_size:g}"
        if until is not None:
            words = f"{steps[-1][1] * activation_size:g}, {words}"
        words = f"holds {words}"
        shapes += [rows.name(index), _staircase(rows, index, steps, now, highest, words)]
        right = rows.left + rows.width + 8
        shapes.append(svg.text(right, rows.y(index) + 38, words, size=12, middle=True))
        spoken.append(f"{name} {words}")
    if until is not None:
        x = rows.left + now * rows.pixels
        shapes.append(svg.line(x, rows.top - 6, x, rows.bottom, colour="#000000"))
    title = f"Timeline of {count(timeline.num_devices, 'device')} and what they hold ({label})"
    size = (rows.left + rows.width + 150, rows.bottom + 34)
    description = "; ".join([*spoken, caption])
    return svg.picture([*shapes, *rows.axis()], size, title=title, description=description)


def _idle_share(timeline: Timeline) -> str:
    """The idle share of the devices in words."""
    return f"{timeline.bubble_fraction:.0%} of the devices' time is idle"


class Rows:
    """A row per device with a box per event, and below the rows an axis of time."""

    def __init__(
        self,
        timeline: Timeline,
        device_names: Sequence[str],
        *,
        top: float,
        height: float,
        width: float,
        left: float | None = None,
        unit: str = "ms",
        horizon: float = 0.0,
    ) -> None:
        if len(device_names) != timeline.num_devices:
            raise ValueError(f"{timeline.num_devices} devices need names; got {len(device_names)}")
        if left is None:  # a letter is about 7 pixels wide
            left = max([120, *(7 * len(name) + 16 for name in device_names)])
        self.timeline, self.device_names = timeline, device_names
        self.left, self.top, self.height, self.width = left, top, height, width
        self.bottom = top + timeline.num_devices * height
        self.end = max(timeline.makespan, horizon) or 1.0
        self.pixels = width / self.end
        self.scale, self.unit = scaled_unit(timeline.makespan, unit)

    def y(self, index: int) -> float:
        """The upper edge of a row."""
        return self.top + index * self.height

    def name(self, index: int) -> str:
        """The name of a device, left of its row."""
        name, y = self.device_names[index], self.y(index) + 13
        return svg.text(self.left - 8, y, name, size=12, anchor="end", middle=True)

    def boxes(
        self, until: float = math.inf, colours: Mapping[object, int] | None = None
    ) -> tuple[list[str], list[str]]:
        """The events that begin by then, as boxes and in words; one that lasts longer is cut."""
        shapes, spoken = [], []
        for index, action, start, end in self.timeline.events:
            if start > until:
                continue
            end = min(end, until)
            digits = ",.0f" if end * self.scale >= 1000 else ".3g"
            times = f"{start * self.scale:{digits}} to {end * self.scale:{digits}} {self.unit}"
            width = max((end - start) * self.pixels, 1)
            corners = (self.left + start * self.pixels, self.y(index), width, 26)
            kind = getattr(action, "kind", None)  # of a pipeline's action
            label = str(action) if kind is None or width >= LEGIBLE else kind
            owner = colours.get(action, index) if colours else index
            colour = KIND_COLOURS.get(kind, device_colour(owner))
            name = self.device_names[index]
            hint = f"{action} on {name}: {times}"
            shapes.append(svg.box(*corners, colour=colour, label=label, hint=hint))
            spoken.append(f"{name} runs {action} from {times}")
        return shapes, spoken

    def shapes(self, axis_unit: str = "") -> list[str]:
        """All names, boxes and the axis."""
        names = [self.name(index) for index in range(self.timeline.num_devices)]
        return [*names, *self.boxes()[0], *self.axis(axis_unit)]

    def axis(self, unit: str = "") -> list[str]:
        """A line with marks at round numbers from 0; its end stands at the right."""
        left, y, end = self.left, self.bottom, self.end * self.scale
        shapes = [svg.line(left, y, left + self.width, y)]
        step = _round_step(end)
        for number in range(int(end / step + 1e-9) + 1):
            x = left + self.width * number * step / end
            shapes.append(svg.line(x, y, x, y + 5))
            shapes.append(svg.text(x, y + 20, f"{number * step:g}", size=11, anchor="middle"))
        last = f"{end:,.0f}" if end >= 1000 else f"{end:.3g}"
        words = f"{last} {unit or self.unit}"
        return [*shapes, svg.text(left + self.width + 8, y + 4, words, size=11)]


def _round_step(end: float) -> float:
    """1, 2 or 5 times a power of ten, so that `end` has four to ten steps."""
    power = 10.0 ** math.floor(math.log10(end / 4)) if end > 0 else 1.0
    return max(size * power for size in (1, 2, 5) if size * power <= max(end / 4, power))


def _staircase(
    rows: Rows, index: int, steps: list[tuple[float, int]], now: float, highest: int, hint: str
) -> str:
    """The number held over time, as an area below the row of a device."""
    left, top = rows.left, rows.y(index) + 27
    points = [(left, top + STRIP)]
    for (start, number), (end, _) in zip(steps, [*steps[1:], (now, 0)], strict=True):
        y = top + STRIP * (1 - number / highest)
        points += [(left + start * rows.pixels, y), (left + end * rows.pixels, y)]
    points.append((left + now * rows.pixels, top + STRIP))
    return svg.area(points, colour=HELD, hint=hint)
