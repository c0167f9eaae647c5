"""Ranks on a mesh: where each is, and who talks to whom."""

from mpcourse.figures import svg
from mpcourse.figures.marks import count, device_colour, device_letter
from mpcourse.schedules.actions import check_count

BOX, GAP, ROW = (84, 30), 62, 58
GREY = "#dddddd"


def mesh_picture(data: int, pipeline: int, rank: int | None = None) -> svg.Picture:
    """Draw a row per pipeline and a column per stage; mark what one rank sends to whom.

    Ranks are numbered along the rows, as `init_device_mesh` does. Activations and their gradients
    cross between neighbours of a row; the ranks of a column average the gradients of their weights.

    Args:
        data: How many pipelines there are beside each other, 1 or more.
        pipeline: How many stages each has, one rank per stage, 1 or more.
        rank: Whose partners are marked; those of all when None.

    Raises:
        ValueError: `data` or `pipeline` is less than 1.
    """
    check_count("data", data)
    check_count("pipeline", pipeline)
    total = data * pipeline
    left, top = 120, 62
    exists = rank is None or 0 <= rank < total
    caption = f"{data} x {pipeline} = {count(total, 'rank')}" + (
        "" if exists else f"; there is no rank {rank}"
    )
    shapes = [svg.text(14, 24, caption)]
    for stage in range(pipeline):
        x = left + stage * (BOX[0] + GAP) + BOX[0] / 2
        shapes.append(svg.text(x, top - 12, f"stage {stage}", size=12, anchor="middle"))
    spoken = [caption]
    for number in range(total):
        row, stage = divmod(number, pipeline)
        x, y = left + stage * (BOX[0] + GAP), top + row * ROW
        if stage == 0:
            name = f"pipeline {row}"
            shapes.append(svg.text(left - 12, y + 15, name, size=12, anchor="end", middle=True))
        if stage + 1 < pipeline:
            shapes += _along(x + BOX[0], y + 15, rank in (None, number, number + 1))
        if row + 1 < data:
            marked = rank is None or (exists and rank % pipeline == stage)
            shapes += _across(x + BOX[0] / 2, y + BOX[1], marked)
        words = f"rank {number}: {_partners(data, pipeline, number)}"
        marked = rank is None or number in _talks_to(data, pipeline, rank)
        colour = device_colour(stage) if marked else GREY
        label = f"rank {number}" + (" *" if number == rank else "")
        shapes.append(svg.box(x, y, *BOX, colour=colour, label=label, hint=words))
        if rank in (None, number):
            spoken.append(words)
    bottom = top + data * ROW
    line = "—  activations, their gradients; - - -  averages the gradients of the weights"
    lines = [line] if rank is None or not exists else [line, spoken[1]]
    shapes += [svg.text(14, bottom + 16 * i, words, size=12) for i, words in enumerate(lines)]
    width = max(left + pipeline * (BOX[0] + GAP), 8 * max(map(len, [caption, *lines])))
    title = f"A mesh of {data} x {pipeline} ranks"
    size = (width, bottom + 16 * len(lines) + 8)
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))


def _along(x: float, y: float, marked: bool) -> list[str]:
    """From a rank to the next stage of its row, and back."""
    ends, colour = [(x + 3, y), (x + GAP - 3, y)], "#333333" if marked else GREY
    tips = [[(a + d, y - 4), (a, y), (a + d, y + 4)] for a, d in ((x + 3, 6), (x + GAP - 3, -6))]
    return [svg.polyline(line, colour=colour, width=1.5) for line in [ends, *tips]]


def _across(x: float, y: float, marked: bool) -> list[str]:
    """Between two ranks of a column."""
    colour = "#D55E00" if marked else GREY
    return [svg.polyline([(x, y + 2), (x, y + ROW - BOX[1] - 2)], colour=colour, dashes="4 3")]


def _talks_to(data: int, pipeline: int, rank: int) -> set[int]:
    """A rank and all with whom it exchanges anything."""
    if not 0 <= rank < data * pipeline:
        return set()
    stage = rank % pipeline
    along = {rank - 1} if stage > 0 else set()
    along |= {rank + 1} if stage + 1 < pipeline else set()
    return {rank, *along, *range(stage, data * pipeline, pipeline)}


def _partners(data: int, pipeline: int, rank: int) -> str:
    row, stage = divmod(rank, pipeline)
    words = [f"stage {stage} of pipeline {row}"]
    along = [other for other in (rank - 1, rank + 1) if other // pipeline == row]
    if along:
        words.append(f"activations to and from {' and '.join(map(str, along))}")
    same = [other for other in range(stage, data * pipeline, pipeline) if other != rank]
    if same:
        words.append(f"averages with {', '.join(map(str, same))}")
    return ", ".join(words)


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
