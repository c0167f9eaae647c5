"""Explorers for a site without a kernel: a picture for every position of their controls.

Pages `start_here`, `scatter_and_gather`, `pipeline`, `schedules`, `torch_pipelining` and
`does_it_fit`. The pictures are those of the widgets themselves; nothing is measured. What page
`pipeline` needs it takes from that page's stored outputs.
"""

import base64
import gzip
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode

from mpcourse.figures.svg import svg_in
from mpcourse.memory.per_rank import MODELS
from mpcourse.pipeline.prediction import Line, StageLines
from mpcourse.widgets import (
    Explorer,
    fit_explorer,
    idle_explorer,
    mesh_explorer,
    scatter_explorer,
    schedule_explorer,
    split_explorer,
)

POWERS = (1, 2, 4, 8, 16, 32, 64)
ALL = None
# Which controls stay on the site, and at which values; the others keep the value they begin with.
SHOWN: dict[str, dict[str, Sequence[Any] | None]] = {
    "start_here": {"first": ALL, "second": ALL},
    "scatter_and_gather": {"rows": ALL, "devices": ALL, "dim": ALL},
    "pipeline": {"size": ALL},
    "schedules": {
        "schedule": ALL,
        "devices": (2, 4, 6),
        "microbatches": (2, 4, 8, 12),
        "transfer": (0, 1, 2),
    },
    "torch_pipelining": {"data": ALL, "pipeline": ALL, "rank": ALL},
    "does_it_fit": {
        "name": tuple(MODELS),
        "batch": POWERS,
        "ranks": POWERS,
        "stage": ALL,
        "recompute": ALL,
    },
}


@dataclass(frozen=True)
class Frames:
    """What an explorer shows, position by position."""

    about: str
    controls: list[dict[str, Any]]  # label, words at the positions, start, whether it is a slider
    pictures: list[str]  # SVG of every combination; the last control changes first

    @property
    def first(self) -> str:
        """The picture to begin with."""
        index = 0
        for control in self.controls:
            index = index * len(control["words"]) + control["start"]
        return self.pictures[index]

    def to_script(self) -> str:
        """A script that leaves the frames in `window.FRAMES`, each different picture once."""
        different = {picture: None for picture in self.pictures}
        number = {picture: index for index, picture in enumerate(different)}
        packed = {
            "pictures": list(different),
            "order": [number[picture] for picture in self.pictures],
        }
        squeezed = gzip.compress(json.dumps(packed).encode(), compresslevel=9, mtime=0)
        text = base64.b64encode(squeezed).decode()
        return f"window.FRAMES = {json.dumps({'controls': self.controls, 'packed': text})};\n"


def frames_of(explorer: Explorer, shown: Mapping[str, Sequence[Any] | None]) -> Frames:
    """Draw an explorer at every combination of the positions of some of its controls."""
    fixed = {name: control.value for name, control in explorer.controls.items()}
    controls, values = [], []
    for name, wanted in shown.items():
        if name not in fixed:
            raise ValueError(f"no control {name!r}; there are {', '.join(fixed)}")
        positions = _positions(explorer.controls[name])
        chosen = [value for value in positions if wanted is None or value in wanted]
        if wanted is not None and len(chosen) != len(wanted):
            raise ValueError(f"{name} cannot be all of {list(wanted)}; it has {list(positions)}")
        start = chosen.index(fixed[name]) if fixed[name] in chosen else 0
        words = [positions[value] for value in chosen]
        slides = all(isinstance(value, int | float) for value in chosen) and len(words) > 2
        label = explorer.controls[name].description
        controls.append({"label": label, "words": words, "start": start, "slider": slides})
        values.append(chosen)
    pictures = [
        explorer.draw(**fixed | dict(zip(shown, position, strict=True))).svg
        for position in itertools.product(*values)
    ]
    return Frames(explorer.about, controls, pictures)


def _positions(control: Any) -> dict[Any, str]:
    """Value -> the words for it."""
    if not hasattr(control, "options"):
        return {value: str(value) for value in range(control.min, control.max + 1, control.step)}
    pairs = [each if isinstance(each, tuple) else (str(each), each) for each in control.options]
    return {value: words for words, value in pairs}


def page_frames(page: str, notebook: NotebookNode) -> Frames | None:
    """The frames of a page's explorer; `None` where the site shows none."""
    makers: dict[str, Callable[[], Explorer]] = {
        "start_here": idle_explorer,
        "scatter_and_gather": scatter_explorer,
        "pipeline": lambda: split_explorer_of(notebook),
        "schedules": schedule_explorer,
        "torch_pipelining": mesh_explorer,
        "does_it_fit": fit_explorer,
    }
    return frames_of(makers[page](), SHOWN[page]) if page in SHOWN else None


LINE = re.compile(r"stage \d (forward|backward) *: +([\d.]+) ms \+ +([\d.]+) ms per sample")
AT_ONCE = re.compile(r"while both work, everything takes ([\d.]+) x")
SWEEP = re.compile(r"(\d+) images of .*split sizes \[([\d, ]+)\]")
CHOSEN = re.compile(r"A step with split size (\d+)")


def split_explorer_of(
    notebook: NotebookNode, *, measure: Callable[[int], float] | None = None
) -> Explorer:
    """The split-size explorer, from what page `pipeline` has printed and drawn."""
    text = "\n".join(_texts(notebook))
    lines, sweep, chosen = LINE.findall(text), SWEEP.search(text), CHOSEN.search(text)
    at_once = AT_ONCE.search(text)
    if not (len(lines) == 4 and sweep and chosen and at_once):
        raise ValueError("page pipeline has no outputs to make its explorer of; run and save it")
    rows = {"forward": [], "backward": []}
    for kind, fixed, per_sample in lines:
        rows[kind].append(Line(float(fixed) / 1e3, float(per_sample) / 1e3))
    smallest = int(sweep[2].split(",")[0])
    return split_explorer(
        StageLines(tuple(rows["forward"]), tuple(rows["backward"]), float(at_once[1])),
        int(sweep[1]),
        range(smallest, int(sweep[1]) + 1, smallest),
        int(chosen[1]),
        ["device 0", "device 1"],
        measured=_drawn(text, "pipeline (measured here)"),
        alone=_drawn(text, "one device, same micro-batches (measured here)"),
        measure=measure,
    )


def _drawn(text: str, series: str) -> dict[int, float]:
    """Split size -> seconds, from the words of the stored curve."""
    found = re.search(re.escape(series) + r": ([\d:ms, ]+)", text)
    pairs = re.findall(r"(\d+): (\d+) ms", found[1]) if found else []
    return {int(size): float(milliseconds) / 1e3 for size, milliseconds in pairs}


def _texts(notebook: NotebookNode) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = [output.text for output in outputs if "text" in output]
    return printed + [
        svg_in(output.data.get("text/html", "")) or "" for output in outputs if "data" in output
    ]
