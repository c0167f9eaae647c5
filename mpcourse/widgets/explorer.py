"""Controls above a picture that follows them.

Pages `start_here` to `parallel_apply` and `schedules`.
"""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import ipywidgets

from mpcourse.figures.svg import Picture

WIDE = ipywidgets.Layout(width="30em")


class Explorer(ipywidgets.VBox):
    """Controls above a picture that follows them.

    Args:
        draw: Called with the value of each control, by name; returns the picture.
        controls: Name -> control.
        about: What the explorer shows, in words.
        play: The name of a slider that a play button moves to its end.
    """

    def __init__(
        self,
        draw: Callable[..., Picture],
        controls: Mapping[str, Any],
        *,
        about: str,
        play: str | None = None,
    ) -> None:
        self.draw = draw
        self.controls = dict(controls)
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
            self.view.value = f"<pre>{escape(f'{type(error).__name__}: {error}')}</pre>"

    def __repr__(self) -> str:
        return f"<explorer: {self.about}; run the cell to move its controls>"


def _player(control: ipywidgets.IntSlider) -> ipywidgets.Play:
    """Buttons that move a slider by themselves; at its end, play begins at its start again."""
    ends = {"min": control.min, "max": control.max, "step": control.step}
    player = ipywidgets.Play(value=control.value, interval=200, show_repeat=False, **ends)
    ipywidgets.jslink((player, "value"), (control, "value"))
    return player


def slider(name: str, value: int, low: int, high: int, *, step: int = 1) -> ipywidgets.IntSlider:
    """A whole-number slider; the arrow keys move it."""
    return ipywidgets.IntSlider(value=value, min=low, max=high, step=step, description=name)


def picture_slider(pictures: Mapping[Any, Picture], name: str) -> Explorer:
    """Step through pictures that are already there, one per value.

    Args:
        pictures: Value -> picture, in the order of the slider.
        name: What the values are, for example "batch size".
    """
    control = ipywidgets.SelectionSlider(options=list(pictures), description=name)
    return Explorer(lambda value: pictures[value], {"value": control}, about=f"by {name}")
