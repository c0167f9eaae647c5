"""An explorer of split sizes: a simulated step, its place on the curve, a button to measure it."""

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from mpcourse.figures import SplitCurve, split_picture
from mpcourse.figures.svg import Picture
from mpcourse.pipeline.prediction import StageLines, predict_step
from mpcourse.widgets.explorer import Explorer, in_html, slider_over

MEASURE = "measure it here"


class SplitExplorer(Explorer):
    """Choose a split size; see its simulated step and its place on the curve, and measure it.

    Args:
        lines: What the stages take, one line per stage and direction.
        num_samples: Samples of the mini-batch.
        sizes: Split sizes to choose from, the measured ones among them; each is simulated now, so
            that choosing is quick.
        chosen: The one to begin with.
        device_names: One name per device.
        measure: Runs a split size and returns the seconds of its step; no button when `None`.

    Attributes:
        measured: Split size -> seconds of the steps measured so far; the button adds to them.
    """

    def __init__(
        self,
        lines: StageLines,
        num_samples: int,
        sizes: Sequence[int],
        chosen: int,
        device_names: Sequence[str],
        *,
        measure: Callable[[int], float] | None = None,
    ) -> None:
        steps = {size: predict_step(lines, num_samples, size) for size in sizes}
        self.predicted = {size: step.makespan for size, step in steps.items()}
        self.measured: dict[int, float] = {}
        self.measure = measure

        def draw(size: int) -> Picture:
            curve = SplitCurve(self.predicted, self.measured)
            return split_picture(curve, size, steps[size], device_names)

        control = slider_over("split size", list(sizes), chosen)
        about = "a step by split size, and its place on the curve"
        super().__init__(draw, {"size": control}, about=about, stored=True)
        self.button = ipywidgets.Button(description=MEASURE)
        self.status = ipywidgets.HTML()
        if measure is not None:
            self.button.on_click(self._measure)
            self.children = (control, self.button, self.status, *self.children[1:])

    def _measure(self, _: Any = None) -> None:
        """Run the chosen split size in the kernel; the button waits meanwhile."""
        size = self.controls["size"].value
        self.button.disabled, self.button.description = True, "measuring …"
        self.status.value = f"Split size {size} runs …"
        try:
            seconds = self.measure(size)
            self.measured[size] = seconds
            predicted = self.predicted[size]
            self.status.value = (
                f"Split size {size}: predicted {predicted * 1e3:.0f} ms (simulated), "
                f"{seconds * 1e3:.0f} ms measured here; "
                f"the prediction is off by {predicted / seconds - 1:+.0%}."
            )
            self._redraw()
        except Exception as error:  # the front end would swallow it
            self.status.value = in_html(error)
        finally:
            self.button.disabled, self.button.description = False, MEASURE


split_explorer = SplitExplorer  # as pages call it: like the other explorers
