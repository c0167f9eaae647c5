"""An explorer for readers without a kernel: its picture at every position of its controls."""

import base64
import gzip
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpcourse.figures.svg import Picture

FRAMES = "application/vnd.mpcourse.frames"  # the kind of output that holds them


def frames_of(
    draw: Callable[..., Picture],
    controls: Mapping[str, Any],
    shown: Mapping[str, Sequence[Any] | None],
) -> str:
    """Draw at every combination of the positions of some controls; the others stay as they are.

    Args:
        draw: Called with a value for each control, by name.
        controls: Name -> control.
        shown: Name -> the values to have; all that the control has when `None`.

    Returns:
        JSON, squeezed by gzip, in base64. `controls`: label, words at the positions, where it
        starts, whether it is a slider. `pictures`: each different SVG once. `order`: the number of
        the picture at each combination; the last control changes first. `first`: where all start.

    Raises:
        ValueError: There is no such control, or it cannot have such a value.
    """
    fixed = {name: control.value for name, control in controls.items()}
    rows, values = [], []
    for name, wanted in shown.items():
        if name not in fixed:
            raise ValueError(f"no control {name!r}; there are {', '.join(fixed)}")
        positions = _positions(controls[name])
        chosen = [value for value in positions if wanted is None or value in wanted]
        if wanted is not None and len(chosen) != len(wanted):
            raise ValueError(f"{name} cannot be all of {list(wanted)}; it has {list(positions)}")
        start = chosen.index(fixed[name]) if fixed[name] in chosen else 0
        slides = all(isinstance(value, int | float) for value in chosen) and len(chosen) > 2
        words = [positions[value] for value in chosen]
        label = controls[name].description
        rows.append({"label": label, "words": words, "start": start, "slider": slides})
        values.append(chosen)
    starts = tuple(chosen[row["start"]] for row, chosen in zip(rows, values, strict=True))
    combinations = list(itertools.product(*values))
    drawn = [draw(**fixed | dict(zip(shown, each, strict=True))).svg for each in combinations]
    number = {picture: index for index, picture in enumerate(dict.fromkeys(drawn))}
    frames = {
        "controls": rows,
        "pictures": list(number),
        "order": [number[picture] for picture in drawn],
        "first": number[drawn[combinations.index(starts)]],
    }
    squeezed = gzip.compress(json.dumps(frames).encode(), compresslevel=9, mtime=0)
    return base64.b64encode(squeezed).decode()


def unpacked(frames: str) -> dict[str, Any]:
    """What `frames_of` has packed."""
    return json.loads(gzip.decompress(base64.b64decode(frames, validate=True)))


def _positions(control: Any) -> dict[Any, str]:
    """Value -> the words for it."""
    if not hasattr(control, "options"):
        return {value: str(value) for value in range(control.min, control.max + 1, control.step)}
    pairs = [each if isinstance(each, tuple) else (str(each), each) for each in control.options]
    return {value: words for words, value in pairs}
