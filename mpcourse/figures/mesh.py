"""Ranks on a mesh: where each is."""

from mpcourse.figures import svg
from mpcourse.figures.marks import count, device_colour, device_letter
from mpcourse.schedules.actions import check_count


def places_picture(pipeline: int, data: int, tensor: int) -> svg.Picture:
    """Draw the ranks of a mesh: a column per stage, a row per share of the batch, boxes in a cell.

    Ranks are numbered with the last axis fastest, as `init_device_mesh` does.

    Args:
        pipeline: How many stages, 1 or more.
        data: How many shares of the batch, 1 or more.
        tensor: How many ranks share a layer, 1 or more.

    Raises:
        ValueError: One of them is less than 1.
    """
    for name, size in (("pipeline", pipeline), ("data", data), ("tensor", tensor)):
        check_count(name, size)
    total, side, tall = pipeline * data * tensor, 62, 34
    caption = f"pipeline {pipeline} x data {data} x tensor {tensor}: {count(total, 'rank')}"
    shapes = [svg.text(14, 24, caption)]
    for rank in range(total):
        stage, rest = divmod(rank, data * tensor)
        share, part = divmod(rest, tensor)
        x, y = 130 + stage * (tensor * side + 70) + part * side, 62 + share * (tall + 30)
        if share == part == 0:
            middle = x + tensor * side / 2
            shapes.append(svg.text(middle, 50, f"stage {stage}", size=12, anchor="middle"))
        if stage == part == 0:
            words = f"batch, part {share}"
            shapes.append(svg.text(120, y + tall / 2, words, size=12, anchor="end", middle=True))
        label = f"{rank} {device_letter(part)}"
        hint = f"rank {rank}: stage {stage}, part {share} of the batch, slice {part} of each layer"
        shapes.append(svg.box(x, y, side, tall, colour=device_colour(part), label=label, hint=hint))
    lines = [
        "side by side in a cell: sums inside each layer",
        "along a row: activations, and their gradients back",
        "down a column, same letter: sums of the weights' gradients",
    ]
    bottom = 62 + data * (tall + 30) + 8
    shapes += [svg.text(14, bottom + 18 * i, words, size=12) for i, words in enumerate(lines)]
    width = max(130 + pipeline * (tensor * side + 70), 470)
    size = (width, bottom + 18 * len(lines))
    return svg.picture(shapes, size, title=caption, description="; ".join(lines))
