"""Ranks on a mesh: where each is, and who talks to whom."""

from mpcourse.figures import svg
from mpcourse.figures.marks import count, device_colour, device_letter
from mpcourse.schedules.actions import check_count

BOX, GAP, ROW = (84, 30), 62, 58
GREY = "#dddddd"


def mesh_picture(data: int, pipeline: int, rank: int) -> svg.Picture:
    """Draw a row per pipeline and a column per stage; mark what one rank sends to whom.

    Ranks are numbered along the rows, as `init_device_mesh` does. Activations and their gradients
    cross between neighbours of a row; the ranks of a column average the gradients of their weights.

    Args:
        data: How many pipelines there are beside each other, 1 or more.
        pipeline: How many stages each has, one rank per stage, 1 or more.
        rank: Whose partners are marked; none where there is no such rank.

    Raises:
        ValueError: `data` or `pipeline` is less than 1.
    """
    check_count("data", data)
    check_count("pipeline", pipeline)
    total, left, top = data * pipeline, 120, 62
    exists = 0 <= rank < total
    near = {rank, *(other for group in _partners(data, pipeline, rank) for other in group)}
    caption = f"{data} x {pipeline} = {count(total, 'rank')}"
    caption += "" if exists else f"; there is no rank {rank}"
    shapes = [svg.text(14, 24, caption)]
    for stage in range(pipeline):
        x = left + stage * (BOX[0] + GAP) + BOX[0] / 2
        shapes.append(svg.text(x, top - 12, f"stage {stage}", size=12, anchor="middle"))
    said = []
    for number in range(total):
        row, stage = divmod(number, pipeline)
        x, y = left + stage * (BOX[0] + GAP), top + row * ROW
        if stage == 0:
            name = f"pipeline {row}"
            shapes.append(svg.text(left - 12, y + 15, name, size=12, anchor="end", middle=True))
        if stage + 1 < pipeline:
            shapes += _along(x + BOX[0], y + 15, rank in (number, number + 1))
        if row + 1 < data:
            shapes.append(_across(x + BOX[0] / 2, y, exists and rank % pipeline == stage))
        said.append(f"rank {number}: {_partners_in_words(data, pipeline, number)}")
        colour = device_colour(stage) if exists and number in near else GREY
        label = f"rank {number}" + (" *" if number == rank else "")
        shapes.append(svg.box(x, y, *BOX, colour=colour, label=label, hint=said[-1]))
    bottom = top + data * ROW
    own = [said[rank]] if exists else []
    line = "—  activations, their gradients; - - -  averages the gradients of the weights"
    lines = [line, *own]
    shapes += [svg.text(14, bottom + 16 * i, words, size=12) for i, words in enumerate(lines)]
    width = max(left + pipeline * (BOX[0] + GAP), 8 * max(map(len, [caption, *lines])))
    size = (width, bottom + 16 * len(lines) + 8)
    title = f"A mesh of {data} x {pipeline} ranks"
    return svg.picture(shapes, size, title=title, description="; ".join([caption, *own]))


def _along(x: float, y: float, marked: bool) -> list[str]:
    """From a rank to the next stage of its row, and back."""
    ends, colour = [(x + 3, y), (x + GAP - 3, y)], "#333333" if marked else GREY
    tips = [[(a + d, y - 4), (a, y), (a + d, y + 4)] for a, d in ((x + 3, 6), (x + GAP - 3, -6))]
    return [svg.polyline(line, colour=colour, width=1.5) for line in [ends, *tips]]


def _across(x: float, y: float, marked: bool) -> str:
    """Between two ranks of a column."""
    ends = [(x, y + BOX[1] + 2), (x, y + ROW - 2)]
    return svg.polyline(ends, colour="#D55E00" if marked else GREY, dashes="4 3")


def _partners(data: int, pipeline: int, rank: int) -> tuple[list[int], list[int]]:
    """The neighbours of a rank in its row, and the others of its column."""
    along = [other for other in (rank - 1, rank + 1) if other // pipeline == rank // pipeline]
    column = range(rank % pipeline, data * pipeline, pipeline)
    return along, [other for other in column if other != rank]


def _partners_in_words(data: int, pipeline: int, rank: int) -> str:
    along, column = _partners(data, pipeline, rank)
    words = f"stage {rank % pipeline} of pipeline {rank // pipeline}"
    words += f", activations to and from {' and '.join(map(str, along))}" if along else ""
    return words + (f", averages with {', '.join(map(str, column))}" if column else "")


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
