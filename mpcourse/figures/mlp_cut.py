"""Who holds which slice of an MLP."""

from mpcourse.figures import svg
from mpcourse.figures.marks import count, device_colour, device_letter
from mpcourse.schedules.actions import check_count

TOP, LOW, HIGH = 78, 44, 132  # of the matrices; heights of width and of inner numbers
SHARED = "#dddddd"


def mlp_cut_picture(ranks: int) -> svg.Picture:
    """Draw x, up, the inner numbers, down and y of an MLP: a colour and a letter for each rank.

    Args:
        ranks: How many hold a slice each, 1 or more.

    Raises:
        ValueError: `ranks` is less than 1.
    """
    check_count("ranks", ranks)
    names = [f"rank {rank} ({device_letter(rank)})" for rank in range(ranks)]
    caption = f"An MLP on {count(ranks, 'rank')}: {', '.join(names)}"
    middle = TOP + HIGH / 2
    shapes = [svg.text(14, 24, caption)]
    x = 24
    for title, kind, width in (
        ("x", "whole", LOW),
        ("up", "columns", HIGH),
        ("GELU", "columns", HIGH),
        ("down", "rows", LOW),
        ("addends", "addends", LOW),
        ("y", "whole", LOW),
    ):
        height = HIGH if title == "down" else LOW
        top = middle - height / 2
        shapes.append(svg.text(x + width / 2, TOP - 12, title, size=12, anchor="middle"))
        shapes += _matrix(title, kind, (x, top, width, height), ranks)
        x += width + 38
        sign = {"x": "·", "up": "→", "GELU": "·", "down": "=", "addends": "sum"}.get(title)
        if sign:
            shapes.append(svg.text(x - 19, middle, sign, size=13, anchor="middle", middle=True))
    line = "x is on all ranks already; the addends are summed (one all-reduce)"
    if ranks == 1:
        line = "one rank holds all: nothing is sent"
    bottom = TOP + HIGH + 28
    shapes.append(svg.text(24, bottom, line, size=12))
    spoken = f"up by columns, down by rows, one slice of each per rank; {line}"
    size = (max(x, 620), bottom + 18)
    return svg.picture(shapes, size, title=caption, description=spoken)


def _matrix(
    title: str, kind: str, place: tuple[float, float, float, float], ranks: int
) -> list[str]:
    """One matrix, cut or whole, or the addends one behind the other."""
    x, y, width, height = place
    if kind == "whole":
        hint = f"{title}: whole, on every rank"
        return [svg.box(x, y, width, height, colour=SHARED, label="all", hint=hint)]
    shapes = []
    for rank in range(ranks):
        label, colour = device_letter(rank), device_colour(rank)
        hint = f"{title}: {kind} of rank {rank}"
        if kind == "columns":
            box = (x + rank * width / ranks, y, width / ranks, height)
        elif kind == "rows":
            box = (x, y + rank * height / ranks, width, height / ranks)
        else:  # addends: all of them as large as y
            step = (HIGH - height) / max(ranks - 1, 1) * (ranks > 1)
            box = (x, y - step * (ranks - 1) / 2 + rank * step, width, height)
        shapes.append(svg.box(*box, colour=colour, label=label, hint=hint))
    return shapes


WIDE, TALL, LANE = 92, 88, 118  # of a whole tensor, tokens down and width across; from rank to rank


def token_cut_picture(ranks: int) -> svg.Picture:
    """Draw what each rank holds in a block whose tokens are cut between the cut layers.

    A row per rank, a column per part of the block; a box as tall as its tokens and as wide as its
    numbers for each token; between two columns the message forward and the one backward.

    Args:
        ranks: How many, 1 or more.

    Raises:
        ValueError: `ranks` is less than 1.
    """
    check_count("ranks", ranks)
    enter, leave = ("g", "all-gather", "reduce-scatter"), ("ḡ", "reduce-scatter", "all-gather")
    parts = ["norm", enter, "heads", leave, "add, norm", enter, "inner", leave, "add"]
    named = f"A block on {count(ranks, 'rank')}"
    caption = f"{named}: tokens from top to bottom, numbers of a token from left to right"
    x, foot = 76.0, TOP + ranks * LANE
    shapes, spoken = [svg.text(14, 24, caption)], [caption]
    for part in parts:
        if isinstance(part, tuple):
            sign, forth, back = part
            middle = x + 42
            for y, words in ((TOP - 12, sign), (foot + 6, f"{forth} →"), (foot + 24, f"← {back}")):
                shapes.append(svg.text(middle, y, words, size=12, anchor="middle"))
            shapes.append(svg.line(middle, TOP - 4, middle, foot - 14))
            spoken.append(f"{sign}: {forth} forward, {back} backward")
            x += 84
            continue
        shapes.append(svg.text(x + WIDE / 2, TOP - 12, part, size=12, anchor="middle"))
        inside = part in ("heads", "inner")
        for rank in range(ranks):
            top, share = TOP + rank * LANE, 1 / ranks
            place = (x, top + rank * TALL * share, WIDE, TALL * share)
            if inside:
                place = (x + rank * WIDE * share, top, WIDE * share, TALL)
            held = f"all tokens, own {part}" if inside else "own tokens, all numbers"
            hint = f"rank {rank}, {part}: {held}"
            look = {"colour": device_colour(rank), "label": device_letter(rank), "hint": hint}
            corners = [(x, top), (x + WIDE, top), (x + WIDE, top + TALL), (x, top + TALL), (x, top)]
            shapes += [svg.polyline(corners, colour="#888888", width=0.6), svg.box(*place, **look)]
        spoken.append(f"{part}: each rank has {held}")
        x += WIDE
    for rank in range(ranks):
        y = TOP + rank * LANE + TALL / 2
        shapes.append(svg.text(14, y, f"rank {rank}", size=12, middle=True))
    return svg.picture(shapes, (x + 20, foot + 32), title=named, description="; ".join(spoken))
