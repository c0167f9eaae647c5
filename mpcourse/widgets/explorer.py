"""Controls above a picture that follows them, and the explorers that need nothing more."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets
import torch

from mpcourse.data_parallel import scatter
from mpcourse.figures import scatter_picture
from mpcourse.figures.svg import Picture
from mpcourse.widgets.frames import FRAMES, frames_of
from mpcourse.widgets.panel import Panel

WIDE = ipywidgets.Layout(width="30em")


class Explorer(Panel):
    """Controls above a picture that follows them.

    Args:
        draw: Called with the value of each control, by name; returns the picture.
        controls: Name -> control.
        about: What the explorer shows, in words.
        play: The name of a slider that a play button moves to its end.
        shown: What readers without a kernel may move: name -> values, or `None` for all that the
            control has. The others stay where they are. All of all when `None`.
        stored: Whether a page keeps the pictures for these readers: what they show is the page's
            own, and nobody else can draw it.
    """

    def __init__(
        self,
        draw: Callable[..., Picture],
        controls: Mapping[str, Any],
        *,
        about: str,
        play: str | None = None,
        shown: Mapping[str, Sequence[Any] | None] | None = None,
        stored: bool = False,
    ) -> None:
        self.draw = draw
        self.controls = dict(controls)
        self.shown = dict.fromkeys(controls) if shown is None else shown
        self.stored = stored
        self.about = about
        self.view = ipywidgets.HTML()
        for control in self.controls.values():
            control.layout = WIDE
            control.style.description_width = "10em"
            control.observe(self._redraw, names="value")
        self._redraw()
        self.player = None if play is None else _player(self.controls[play])
        players = [] if self.player is None else [self.player]
        super().__init__([*self.controls.values(), *players, self.view])

    def _redraw(self, _: Any = None) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        try:
            self.view.value = self.draw(**values).svg
        except Exception as error:  # the front end would swallow it
            self.view.value = in_html(error)

    def frames(self) -> str:
        """Its pictures for readers without a kernel; see `mpcourse.widgets.frames`."""
        return frames_of(self.draw, self.controls, self.shown)

    def _repr_mimebundle_(self, **which: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**which)
        if self.stored:
            bundle[FRAMES] = self.frames()
        return bundle

    def __repr__(self) -> str:
        return f"<explorer: {self.about}; run the cell to move its controls>"


def in_html(error: Exception) -> str:
    """What a widget shows of an error."""
    return f"<pre>{escape(f'{type(error).__name__}: {error}')}</pre>"


def _player(control: ipywidgets.IntSlider) -> ipywidgets.Play:
    """Buttons that move a slider by themselves; at its end, play begins at its start again."""
    ends = {"min": control.min, "max": control.max, "step": control.step}
    player = ipywidgets.Play(value=control.value, interval=200, show_repeat=False, **ends)
    ipywidgets.jslink((player, "value"), (control, "value"))
    return player


def slider(name: str, value: int, low: int, high: int, *, step: int = 1) -> ipywidgets.IntSlider:
    """A whole-number slider; the arrow keys move it."""
    return ipywidgets.IntSlider(value=value, min=low, max=high, step=step, description=name)


def slider_over(name: str, options: Sequence[Any], value: Any) -> ipywidgets.SelectionSlider:
    """A slider over given values, or over pairs of words and value."""
    return ipywidgets.SelectionSlider(options=options, value=value, description=name)


def picture_slider(pictures: Mapping[Any, Picture], name: str) -> Explorer:
    """Step through pictures that are already there, one per value.

    Args:
        pictures: Value -> picture, in the order of the slider.
        name: What the values are, for example "batch size".
    """
    control = slider_over(name, list(pictures), next(iter(pictures)))
    return Explorer(
        lambda value: pictures[value], {"value": control}, about=f"by {name}", stored=True
    )


def scatter_explorer(rows: int = 7, devices: int = 3) -> Explorer:
    """Choose a batch size, a number of devices and a dimension; see which device gets what.

    Args:
        rows: Size of the batch to begin with, 1 to 16.
        devices: How many devices to begin with, 1 to 8.
    """

    def draw(rows: int, devices: int, dim: int) -> Picture:
        chunks = scatter(torch.arange(rows), ["cpu"] * devices)
        return scatter_picture([len(chunk) for chunk in chunks], devices, dim=dim)

    controls = {
        "rows": slider("size of the batch", rows, 1, 16),
        "devices": slider("devices", devices, 1, 8),
        "dim": ipywidgets.ToggleButtons(  # arrow keys in a Dropdown would move to another cell
            options=[("0: cut the rows", 0), ("1: cut the columns", 1)], description="dim"
        ),
    }
    return Explorer(draw, controls, about="which device gets which rows of a batch")
