"""Who worked when: one drawing for measured and for simulated timelines.

Pages `start_here` and `resnet50_on_two_devices` to `train_mnist`.
"""

import math
from collections.abc import Sequence

from mpcourse.figures import svg
from mpcourse.figures.marks import check_label, count, device_colour, scaled_unit
from mpcourse.schedules.timeline import Event, Timeline

# Of a pipeline's actions: sky blue, orange, yellow, green
KIND_COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73"}

LEGIBLE = 18  # pixels: a narrower box has room for the kind of its action only


def timeline_picture(
    timeline: Timeline,
    device_names: Sequence[str],
    *,
    label: str,
    unit: str = "ms",
    caption: str | None = None,
    row: str = "device",
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

    Raises:
        ValueError: `label` is another, or there are more or fewer names than devices.
    """
    check_label(label)
    if len(device_names) != timeline.num_devices:
        raise ValueError(f"{timeline.num_devices} devices need names; got {len(device_names)}")
    scale, unit = scaled_unit(timeline.makespan, unit)
    left = max([120, *(7 * len(name) + 16 for name in device_names)])  # a letter: about 7 pixels
    top, height, width = 40, 34, 560
    span = timeline.makespan or 1.0
    caption = caption or f"{timeline.bubble_fraction:.0%} of the devices' time is idle"
    shapes = [svg.text(left, 24, f"{label}; {caption}")]
    for index, name in enumerate(device_names):
        y = top + index * height
        shapes.append(svg.text(left - 8, y + 13, name, size=12, anchor="end", middle=True))
        shapes.append(svg.line(left, y + 13, left + width, y + 13, colour="#dddddd"))
    spoken = []
    for event in timeline.events:
        place = (left, top + event.device_index * height, width / span)
        shape, words = event_box(event, place, device_names, scale, unit)
        shapes.append(shape)
        spoken.append(words)
    bottom = top + timeline.num_devices * height
    shapes += time_axis(left, bottom, width, span * scale, unit)
    title = f"Timeline of {count(timeline.num_devices, row)} ({label})"
    size = (left + width + 80, bottom + 34)
    return svg.picture(shapes, size, title=title, description="; ".join([*spoken, caption]))


def event_box(
    event: Event,
    place: tuple[float, float, float],
    device_names: Sequence[str],
    scale: float,
    unit: str,
) -> tuple[str, str]:
    """The box of an event, coloured by kind or by device, and what it says in words.

    Args:
        event: What to draw.
        place: x of time 0, y of the row, pixels per unit of the timeline.
        device_names: One name per device.
        scale: `unit`s per unit of the timeline.
        unit: For people.
    """
    left, y, pixels = place
    action, name = str(event.action), device_names[event.device_index]
    digits = ",.0f" if event.end * scale >= 1000 else ".3g"
    times = f"{event.start * scale:{digits}} to {event.end * scale:{digits}} {unit}"
    corners = (left + event.start * pixels, y, max(event.duration * pixels, 1), 26)
    # a pipeline's actions by their kind, since the row says the device; other jobs by device
    kind = getattr(event.action, "kind", None)
    colour = KIND_COLOURS.get(kind, device_colour(event.device_index))
    label = action if kind is None or corners[2] >= LEGIBLE else kind
    shape = svg.box(*corners, colour=colour, label=label, hint=f"{action} on {name}: {times}")
    return shape, f"{name} runs {action} from {times}"


def time_axis(left: float, y: float, width: float, end: float, unit: str) -> list[str]:
    """A line with marks at round numbers from 0, below the rows; `end` stands at its right."""
    shapes = [svg.line(left, y, left + width, y)]
    step = _round_step(end)
    for number in range(int(end / step + 1e-9) + 1):
        x = left + width * number * step / end
        shapes.append(svg.line(x, y, x, y + 5))
        shapes.append(svg.text(x, y + 20, f"{number * step:g}", size=11, anchor="middle"))
    last = f"{end:,.0f}" if end >= 1000 else f"{end:.3g}"
    return [*shapes, svg.text(left + width + 8, y + 4, f"{last} {unit}", size=11)]


def _round_step(end: float) -> float:
    """1, 2 or 5 times a power of ten, so that `end` has four to ten steps."""
    power = 10.0 ** math.floor(math.log10(end / 4)) if end > 0 else 1.0
    return max(size * power for size in (1, 2, 5) if size * power <= max(end / 4, power))
