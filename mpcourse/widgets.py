"""Thin ipywidgets shells around the figures; the only module that knows ipywidgets.

Each widget shows a picture by setting `HTML.value`: no output is captured, so the pages hold under
nbval, and both ipywidgets 7.7 (Colab) and 8 have all that is used. The text form of each widget
says what it shows, for readers on a page without a kernel.
"""

import re
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import ipywidgets
import torch

from mpcourse.figures import scatter_picture, timeline_picture
from mpcourse.scatter_gather import scatter
from mpcourse.svg import Picture
from mpcourse.timeline import Event, Timeline

WIDE = ipywidgets.Layout(width="30em")


class Explorer(ipywidgets.VBox):
    """Controls above a picture that follows them.

    Args:
        draw: Called with the value of each control, by name; returns the picture.
        controls: Name -> control.
        about: What the explorer shows, in words.
    """

    def __init__(
        self, draw: Callable[..., Picture], controls: Mapping[str, Any], *, about: str
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
        super().__init__([*self.controls.values(), self.view])

    def _redraw(self, _: Any = None) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        try:
            self.view.value = self.draw(**values).svg
        except Exception as error:  # the front end would swallow it
            self.view.value = f"<pre>{escape(f'{type(error).__name__}: {error}')}</pre>"

    def __repr__(self) -> str:
        return f"<explorer: {self.about}; run the cell to move its controls>"


def slider(name: str, value: int, low: int, high: int) -> ipywidgets.IntSlider:
    """A whole-number slider; the arrow keys move it."""
    return ipywidgets.IntSlider(value=value, min=low, max=high, description=name)


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


def idle_explorer(first: int = 4, second: int = 2) -> Explorer:
    """Choose how long two devices work; see the timeline and how much of it is idle (simulated).

    Args:
        first: Length of device A's job to begin with, 1 to 8.
        second: Length of device B's job to begin with, 1 to 8.
    """

    def draw(first: int, second: int) -> Picture:
        timeline = Timeline((Event(0, "job 1", 0, first), Event(1, "job 2", 0, second)), 2)
        names = ["device A", "device B"]
        return timeline_picture(timeline, names, label="simulated", unit="units")

    controls = {
        "first": slider("job on device A", first, 1, 8),
        "second": slider("job on device B", second, 1, 8),
    }
    return Explorer(draw, controls, about="the timeline of two jobs and its idle share")


def picture_slider(pictures: Mapping[Any, Picture], name: str) -> Explorer:
    """Step through pictures that are already there, one per value.

    Args:
        pictures: Value -> picture, in the order of the slider.
        name: What the values are, for example "batch size".
    """
    control = ipywidgets.SelectionSlider(options=list(pictures), description=name)
    return Explorer(lambda value: pictures[value], {"value": control}, about=f"by {name}")


class Prediction(ipywidgets.VBox):
    """A place for a guess, to be held against the answer later.

    Args:
        prompt: What to type, in a few words.
    """

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.entry = ipywidgets.Text(placeholder="your guess", layout=WIDE)
        super().__init__([ipywidgets.Label(prompt), self.entry])

    def __repr__(self) -> str:
        return f"<your guess: {self.prompt}; run the cell to type it>"

    def compare(self, answer: Any, *, within: float = 0.0) -> "Comparison":
        """Show the guess beside the answer; typing another guess changes what is shown.

        Args:
            answer: The right answer; its numbers, in order, are held against those of the guess.
            within: How far off a guess may be, as a share of each number (0.1: a tenth).
        """
        return Comparison(self, str(answer), within)


class Comparison(ipywidgets.HTML):
    """A guess beside the answer."""

    def __init__(self, prediction: Prediction, answer: str, within: float) -> None:
        super().__init__()
        self.prediction = prediction
        self.answer = answer
        self.within = within
        prediction.entry.observe(self._show, names="value")
        self._show()

    @property
    def sentence(self) -> str:
        """What is shown, as text."""
        guess = self.prediction.entry.value.strip()
        if not guess:
            return f"Your guess: none yet. Answer: {self.answer}."
        verdict = "as you said" if self._agrees(guess) else "not what you guessed"
        return f"Your guess: {guess}. Answer: {self.answer} ({verdict})."

    def _agrees(self, guess: str) -> bool:
        guessed, right = _numbers(guess), _numbers(self.answer)
        if not right:
            return _words(guess) == _words(self.answer)
        share = self.within + 1e-9  # 1.1 is a tenth off 1, whatever floats say
        near = [abs(g - r) <= share * abs(r) for g, r in zip(guessed, right, strict=False)]
        return len(guessed) == len(right) and all(near)

    def _show(self, _: Any = None) -> None:
        self.value = f"<b>{escape(self.sentence)}</b>"

    def __repr__(self) -> str:
        return self.sentence


NUMBER = re.compile(r"(?:(?<!\w)-)?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)


def _numbers(words: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(words)]  # 3-3-1 has dashes, no minus


def _words(words: str) -> list[str]:
    return [word for word in re.findall(r"\w+", words.casefold()) if word not in ("a", "an", "the")]


def predict(prompt: str) -> Prediction:
    """Make a place for a guess; `.compare(answer)` shows it beside the answer later.

    Args:
        prompt: What to type, in a few words, for example "rows of each device, such as 1, 2, 4".
    """
    return Prediction(prompt)
