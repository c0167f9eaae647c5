"""A bar that counts the batches of a loop."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import ipywidgets
from IPython.display import display

REDRAW_S = 0.05  # the least time between two messages to the browser


class ProgressBar(ipywidgets.HBox):
    """A bar and, beside it, its count in words; `total` is None when nobody knows it."""

    def __init__(self, name: str, total: int | None) -> None:
        self.name = name
        self.total = total
        self.bar = ipywidgets.IntProgress(value=0, min=0, max=max(total or 0, 1))
        self.words = ipywidgets.Label()
        self._next = 0.0
        super().__init__([self.bar, self.words])
        self.count(0)

    def count(self, done: int) -> None:
        """Show how many batches are done, unless something was shown a moment ago."""
        if done and time.monotonic() < self._next:
            return
        self._show(done, self._of(done))
        self._next = time.monotonic() + REDRAW_S

    def finish(self, done: int) -> None:
        """Say that the loop went through all batches."""
        self._show(done, f"{self._of(done)}, done")
        self.bar.value = self.bar.max
        self.bar.bar_style = "success"

    def stop(self, done: int, reason: str = "") -> None:
        """Say that the loop ended before the batches did."""
        self._show(done, f"ended early{reason}, after {self._of(done)}")
        self.bar.bar_style = "danger"

    def _of(self, done: int) -> str:
        known = "" if self.total is None else f" of {self.total}"
        return f"{done}{known} batch{'es' * ((self.total or done) != 1)}"

    def _show(self, done: int, words: str) -> None:
        if self.total is not None:
            self.bar.value = done
        self.words.value = f"{self.name}: {words}"

    def __repr__(self) -> str:
        return f"<progress of {self.name}; run the cell to see it>"  # no count: nbval compares it


class Progress:
    """A loader that shows a bar whenever a loop goes through it.

    Write `for batch in progress(loader, "epoch 1")`. A batch counts when the loop's body has
    finished with it. When the loop ends early, by an error, an interrupt or a break, the bar says
    so and keeps the count.

    Args:
        loader: Anything that a loop can go through; if it has a length, the bar knows its end.
        name: What is counted, in a word or two.
    """

    def __init__(self, loader: Iterable[Any], name: str) -> None:
        self.loader = loader
        self.name = name
        self.bar: ProgressBar | None = None  # of the last loop

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        try:
            total = len(self.loader)
        except TypeError:
            total = None
        bar = self.bar = ProgressBar(self.name, total)
        display(bar)
        done = 0
        try:
            for batch in self.loader:
                yield batch
                done += 1
                bar.count(done)
        except GeneratorExit:  # the loop's body raised, or left by break or return
            bar.stop(done)
            raise
        except BaseException as error:  # the loader itself raised
            bar.stop(done, f" by {type(error).__name__}")
            raise
        bar.finish(done)


progress = Progress  # as pages call it
