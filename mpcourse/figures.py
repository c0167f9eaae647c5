"""The course's pictures: data in, SVG or matplotlib axes out. Nothing here measures or shows.

Page 00 draws timelines, page 01 the rows of a batch, page 02 times over batch sizes.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpcourse import svg
from mpcourse.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = ("measured here", "simulated", "quoted")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MARKERS = "osD^vP"


def device_letter(index: int) -> str:
    """The letter that stands for a device in pictures: A, B, and so on."""
    return LETTERS[index % len(LETTERS)]


def device_colour(index: int) -> str:
    """The colour that stands for a device in pictures."""
    return svg.COLOURS[index % len(svg.COLOURS)]


def scatter_picture(sizes: Sequence[int], num_devices: int, *, dim: int = 0) -> svg.Picture:
    """Draw a batch as a grid and colour each row (or column) by the device that gets it.

    Args:
        sizes: Size of each chunk along `dim`, one per device that gets one.
        num_devices: How many devices there are; those without a chunk are drawn empty.
        dim: 0 cuts rows, 1 cuts columns.

    Raises:
        ValueError: `dim` is another, a chunk is empty, or there are more chunks than devices.
    """
    if dim not in (0, 1):
        raise ValueError(f"dim is 0 (rows) or 1 (columns); got {dim}")
    if len(sizes) > num_devices or any(size < 1 for size in sizes):
        raise ValueError(f"{num_devices} devices take as many chunks, of 1 or more; got {sizes}")
    owners = [index for index, size in enumerate(sizes) for _ in range(size)]
    other = 4  # the dimension that is not cut: four features, or four samples
    rows, columns = (len(owners), other) if dim == 0 else (other, len(owners))
    cell, left, top = 22, 16, 44
    shapes = [svg.text(left, 26, f"the batch: {_count(rows, 'row')}, {_count(columns, 'column')}")]
    for row in range(rows):
        for column in range(columns):
            owner = owners[row if dim == 0 else column]
            hint = f"row {row}, column {column}: device {device_letter(owner)}"
            place = (left + column * cell, top + row * cell, cell - 2, cell - 2)
            letter = device_letter(owner)
            shapes.append(svg.box(*place, colour=device_colour(owner), label=letter, hint=hint))
    x = left + max(columns * cell, 180) + 40
    lines = _chunk_lines(sizes, num_devices, dim)
    for index, words in enumerate(lines):
        y = top + index * 28
        empty = index >= len(sizes)
        colour = "#ffffff" if empty else device_colour(index)
        shapes.append(svg.box(x, y, 22, 22, colour=colour, label=device_letter(index)))
        shapes.append(svg.text(x + 32, y + 11, words, middle=True))
    height = top + max(rows * cell, num_devices * 28) + 12
    cut = _count(len(owners), "row" if dim == 0 else "column")
    title = f"{cut} scattered over {_count(num_devices, 'device')}"
    named = [f"{device_letter(index)}: {words}" for index, words in enumerate(lines)]
    return svg.picture(shapes, (x + 240, height), title=title, description="; ".join(named))


def _chunk_lines(sizes: Sequence[int], num_devices: int, dim: int) -> list[str]:
    what, lines, start = ("row" if dim == 0 else "column"), [], 0
    for size in sizes:
        span = f"{what} {start}" if size == 1 else f"{what}s {start} to {start + size - 1}"
        lines.append(f"{_count(size, what)}: {span}")
        start += size
    return lines + ["nothing"] * (num_devices - len(sizes))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def timeline_picture(
    timeline: Timeline,
    device_names: Sequence[str],
    *,
    label: str,
    unit: str = "ms",
    caption: str | None = None,
) -> svg.Picture:
    """Draw who worked when: a row per device, a box per event, idle time left white.

    Args:
        timeline: Measured (in seconds) or simulated.
        device_names: One name per device.
        label: "measured here", "simulated" or "quoted": where the times come from.
        unit: "ms" draws seconds as milliseconds; any other word is the timeline's own unit.
        caption: What stands above the rows; the idle share of the devices when `None`.

    Raises:
        ValueError: `label` is another, or there are more or fewer names than devices.
    """
    _check_label(label)
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
        colour, action = device_colour(event.device_index), str(event.action)
        hint = f"{action} on {name}: {times}"
        shapes.append(svg.box(*place, colour=colour, label=action, hint=hint))
    bottom = top + timeline.num_devices * row
    shapes += _time_axis(left, bottom, width, span * scale, unit)
    title = f"Timeline of {_count(timeline.num_devices, 'device')} ({label})"
    size = (left + width + 50, bottom + 34)
    return svg.picture(shapes, size, title=title, description="; ".join([*spoken, caption]))


def _check_label(label: str) -> None:
    if label not in LABELS:
        raise ValueError(f"label is one of {', '.join(LABELS)}; got {label!r}")


def _time_axis(left: float, y: float, width: float, end: float, unit: str) -> list[str]:
    shapes = [svg.line(left, y, left + width, y)]
    for quarter in range(5):
        x = left + width * quarter / 4
        shapes.append(svg.line(x, y, x, y + 5))
        words = f"{end * quarter / 4:.3g}" + (f" {unit}" if quarter == 4 else "")
        shapes.append(svg.text(x, y + 20, words, size=11, anchor="middle"))
    return shapes


def plot_times(
    sizes: Sequence[int],
    times_s: Mapping[str, Sequence[tuple[float, float]]],
    ax: "Axes",
    *,
    label: str = "measured here",
) -> "Axes":
    """Plot time over batch size, one line with its spread per name.

    Args:
        sizes: Batch sizes, in samples.
        times_s: Name -> (median, spread) in seconds for each size.
        ax: The matplotlib axes to draw into.
        label: "measured here", "simulated" or "quoted": where the times come from.

    Returns:
        `ax`.
    """
    _check_label(label)
    for index, (name, values) in enumerate(times_s.items()):
        medians = [1e3 * median for median, _ in values]
        spreads = [1e3 * spread / 2 for _, spread in values]
        style = {"color": device_colour(index), "marker": MARKERS[index % len(MARKERS)]}
        ax.errorbar(sizes, medians, yerr=spreads, label=name, capsize=3, **style)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(list(sizes), [str(size) for size in sizes])
    ax.set_xlabel("batch size (samples)")
    ax.set_ylabel("time of a forward pass (ms)")
    ax.set_title(label)
    ax.grid(alpha=0.3)
    ax.legend()
    return ax
