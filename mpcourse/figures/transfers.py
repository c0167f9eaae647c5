"""What crosses from device to device, in order."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpcourse.figures import svg
from mpcourse.figures.marks import check_label, count, device_colour

if TYPE_CHECKING:
    from mpcourse.splitting.placement import Transfer

FORWARD, BACKWARD = "#0072B2", "#D55E00"
WIDEST, THINNEST = 14, 1  # of arrows


def transfers_picture(
    transfers: Sequence["Transfer"],
    parameter_bytes: Mapping[str, int],
    *,
    label: str,
    caption: str = "",
    most: int | None = None,
) -> svg.Picture:
    """Draw a column per device and an arrow per transfer, as wide as it has bytes, first on top.

    Args:
        transfers: What crossed, in order; anything with the attributes of a `Transfer`.
        parameter_bytes: Device -> bytes of its parameters, written at the head of its column.
        label: "measured here", "simulated" or "quoted": where the transfers come from.
        caption: What stands above the columns.
        most: Bytes of the widest arrow, so that pictures can be compared; those of the largest
            transfer when None.

    Raises:
        ValueError: `label` is another.
    """
    check_label(label)
    ends = {name for transfer in transfers for name in (transfer.source, transfer.target)}
    names = sorted(ends | set(parameter_bytes), key=lambda name: (name != "cpu", name))
    left, gap, wide, top, row = 106, 230, 150, 44, 44
    column = {name: left + index * gap for index, name in enumerate(names)}
    bottom = top + 56 + row * len(transfers)
    shapes = [svg.text(14, 26, "; ".join(filter(None, [label, caption])))]
    spoken = []
    for index, name in enumerate(names):
        x, held = column[name], parameter_bytes.get(name, 0)
        words = f"{held:,} bytes of parameters" if held else "no parameters"
        shapes.append(svg.line(x, top + 26, x, bottom, colour="#bbbbbb"))
        colour = "#dddddd" if name == "cpu" else device_colour(index - ("cpu" in names))
        place = (x - wide / 2, top, wide, 26)
        shapes.append(svg.box(*place, colour=colour, label=name, hint=f"{name}: {words}"))
        spoken.append(f"{name} has {words}")
        shapes.append(svg.text(x, top + 42, words, size=11, anchor="middle"))
    most = most or max((transfer.nbytes for transfer in transfers), default=1)
    for number, transfer in enumerate(transfers):
        y = top + 76 + row * number
        width = max(THINNEST, WIDEST * min(1.0, transfer.nbytes / most))
        ends = column[transfer.source], column[transfer.target]
        shapes += _arrow(transfer, *ends, y, gap, width)
        spoken.append(str(transfer))
    title = f"{count(len(transfers), 'transfer')} between {count(len(names), 'device')} ({label})"
    size = (2 * left + gap * max(len(names) - 1, 1), bottom + 14)
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))


def _arrow(
    transfer: "Transfer", start: float, end: float, y: float, gap: float, width: float
) -> list[str]:
    colour, phase = (BACKWARD, "backward") if transfer.backward else (FORWARD, "forward")
    along = 1 if end > start else -1
    half = width / 2 + 3  # of the head
    tail = end - along * 2 * half
    beside = start + along * gap / 2  # between two columns
    dashes = ' stroke-dasharray="6 3"' if transfer.backward else ""
    stroke = f'stroke="{colour}" stroke-width="{width:.2f}"{dashes}'
    shaft = f'<path d="M{start:.2f} {y:.2f}H{tail:.2f}" {stroke}/>'
    head = (
        f'<path d="M{end:.2f} {y:.2f}L{tail:.2f} {y - half:.2f}V{y + half:.2f}Z" fill="{colour}"/>'
    )
    words = f"{phase}, {transfer.nbytes:,} bytes"
    return [shaft, head, svg.text(beside, y - width / 2 - 5, words, size=11, anchor="middle")]
