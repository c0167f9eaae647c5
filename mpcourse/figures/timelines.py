"""Who worked when: one drawing for measured and for simulated timelines (pages 00 and 05 to 08)."""

from collections.abc import Sequence

from mpcourse import svg
from mpcourse.figures.marks import check_label, count, device_colour
from mpcourse.timeline import Event, Timeline

# Of a pipeline's actions: sky blue, orange, yellow, green
KIND_COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73"}


def timeline_picture(
    timeline: Timeline,
    device_names: Sequence[str],
    *,
    label: str,
    unit: str = "ms",
    caption: str | None = None,
) -> svg.Picture:
    """Draw who worked when: a row per device, a box per event, idle time left white.

    A pipeline's actions are coloured by kind (F, B, I, W), other jobs by device.

    Args:
        timeline: Measured (in seconds) or simulated.
        device_names: One name per device.
        label: "measured here", "simulated" or "quoted": where the times come from.
        unit: "ms" draws seconds as milliseconds; any other word is the timeline's own unit.
        caption: What stands above the rows; the idle share of the devices when `None`.

    Raises:
        ValueError: `label` is another, or there are more or fewer names than devices.
    """
    check_label(label)
    if len(device_names) != timeline.num_devices:
        raise ValueError(f"{timeline.num_devices} devices need names; got {len(device_names)}")
    scale = 1e3 if unit == "ms" else 1.0
    left = max([120, *(7 * len(name) + 16 for name in device_names)])  # a letter: about 7 pixels
    top, row, width = 40, 34, 560
    span = timeline.makespan or 1.0
    caption = caption or f"{timeline.bubble_fraction:.0%} of the devices' time is idle"
    shapes = [svg.text(left, 24, f"{label}; {caption}")]
    for index, name in enumerate(device_names):
        y = top + index * row
        shapes.append(svg.text(left - 8, y + 13, name, size=12, anchor="end", middle=True))
        shapes.append(svg.line(left, y + 13, left + width, y + 13, colour="#dddddd"))
    spoken = []
    for event in timeline.events:
        x = left + event.start / span * width
        name = device_names[event.device_index]
        times = f"{event.start * scale:.3g} to {event.end * scale:.3g} {unit}"
        spoken.append(f"{name} runs {event.action} from {times}")
        place = (x, top + event.device_index * row, max(event.duration / span * width, 1), 26)
        colour, action = _colour(event), str(event.action)
        hint = f"{action} on {name}: {times}"
        shapes.append(svg.box(*place, colour=colour, label=action, hint=hint))
    bottom = top + timeline.num_devices * row
    shapes += _time_axis(left, bottom, width, span * scale, unit)
    title = f"Timeline of {count(timeline.num_devices, 'device')} ({label})"
    size = (left + width + 50, bottom + 34)
    return svg.picture(shapes, size, title=title, description="; ".join([*spoken, caption]))


def _colour(event: Event) -> str:
    """A pipeline's actions by their kind, since the row says the device; other jobs by device."""
    kind = getattr(event.action, "kind", None)
    return KIND_COLOURS.get(kind, device_colour(event.device_index))


def _time_axis(left: float, y: float, width: float, end: float, unit: str) -> list[str]:
    shapes = [svg.line(left, y, left + width, y)]
    for quarter in range(5):
        x = left + width * quarter / 4
        shapes.append(svg.line(x, y, x, y + 5))
        words = f"{end * quarter / 4:.3g}" + (f" {unit}" if quarter == 4 else "")
        shapes.append(svg.text(x, y + 20, words, size=11, anchor="middle"))
    return shapes
