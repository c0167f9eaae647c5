"""A timeline with what each device holds below its row (page `schedules`)."""

from collections.abc import Sequence

from mpcourse.figures import svg
from mpcourse.figures.marks import check_label, count, scaled_unit
from mpcourse.figures.timelines import event_box, time_axis
from mpcourse.schedules.timeline import Event, Timeline

HELD = "#bbbbbb"
TOP, ROW, STRIP, WIDTH, RIGHT = 40, 58, 22, 680, 150  # pixels


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
        unit: "ms" for a timeline in seconds (from one second on it draws seconds); any other word
            is the timeline's own unit.
        caption: What stands above the rows; the idle share of the devices when `None`.
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
    if len(device_names) != timeline.num_devices:
        raise ValueError(f"{timeline.num_devices} devices need names; got {len(device_names)}")
    scale, unit = scaled_unit(timeline.makespan, unit)
    left = max([120, *(7 * len(name) + 16 for name in device_names)])
    end = max(timeline.makespan, horizon) or 1.0
    now = end if until is None else min(until, end)
    caption = caption or f"{timeline.bubble_fraction:.0%} of the devices' time is idle"
    shapes = [svg.text(left, 24, f"{label}; {caption}")]
    spoken = []
    for event in timeline.events:
        if event.start <= now:
            place = (left, TOP + event.device_index * ROW, WIDTH / end)
            shape, words = event_box(_cut(event, now), place, device_names, scale, unit)
            shapes.append(shape)
            spoken.append(words)
    held = timeline.held_activations
    highest = max(number for steps in held for _, number in steps) or 1
    for index, name in enumerate(device_names):
        y = TOP + index * ROW
        shapes.append(svg.text(left - 8, y + 13, name, size=12, anchor="end", middle=True))
        steps = [step for step in held[index] if step[0] <= now]
        words = _held_in_words(steps, activation_size, at_the_end=until is None)
        shapes.append(_staircase(steps, now, (left, y + 27, WIDTH / end), highest, words))
        shapes.append(svg.text(left + WIDTH + 8, y + 38, words, size=12, middle=True))
        spoken.append(f"{name} {words}")
    bottom = TOP + timeline.num_devices * ROW
    if until is not None:
        x = left + now / end * WIDTH
        shapes.append(svg.line(x, TOP - 6, x, bottom, colour="#000000"))
    shapes += time_axis(left, bottom, WIDTH, end * scale, unit)
    title = f"Timeline of {count(timeline.num_devices, 'device')} and what they hold ({label})"
    size = (left + WIDTH + RIGHT, bottom + 34)
    return svg.picture(shapes, size, title=title, description="; ".join([*spoken, caption]))


def _cut(event: Event, now: float) -> Event:
    return Event(event.device_index, event.action, event.start, min(event.end, now))


def _held_in_words(steps: list[tuple[float, int]], size: float, *, at_the_end: bool) -> str:
    most = f"at most {max(number for _, number in steps) * size:g}"
    return f"holds {most}" if at_the_end else f"holds {steps[-1][1] * size:g}, {most}"


def _staircase(
    steps: list[tuple[float, int]],
    now: float,
    place: tuple[float, float, float],
    highest: int,
    hint: str,
) -> str:
    """The number held over time, as an area that stands on the lower edge of the strip."""
    left, top, pixels = place
    points = [(left, top + STRIP)]
    for (start, number), (end, _) in zip(steps, [*steps[1:], (now, 0)], strict=True):
        y = top + STRIP * (1 - number / highest)
        points += [(left + start * pixels, y), (left + end * pixels, y)]
    points.append((left + now * pixels, top + STRIP))
    return svg.area(points, colour=HELD, hint=hint)
