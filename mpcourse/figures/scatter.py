"""The rows of a batch and who gets them."""

from collections.abc import Sequence

from mpcourse.figures import svg
from mpcourse.figures.marks import count, device_colour, device_letter


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
    shapes = [svg.text(left, 26, f"the batch: {count(rows, 'row')}, {count(columns, 'column')}")]
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
    cut = count(len(owners), "row" if dim == 0 else "column")
    title = f"{cut} scattered over {count(num_devices, 'device')}"
    named = [f"{device_letter(index)}: {words}" for index, words in enumerate(lines)]
    return svg.picture(shapes, (x + 240, height), title=title, description="; ".join(named))


def _chunk_lines(sizes: Sequence[int], num_devices: int, dim: int) -> list[str]:
    what, lines, start = ("row" if dim == 0 else "column"), [], 0
    for size in sizes:
        span = f"{what} {start}" if size == 1 else f"{what}s {start} to {start + size - 1}"
        lines.append(f"{count(size, what)}: {span}")
        start += size
    return lines + ["nothing"] * (num_devices - len(sizes))
