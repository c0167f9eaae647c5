"""A schedule built by hand, a button a move."""

from html import escape

import ipywidgets

from mpcourse.figures import memory_picture
from mpcourse.figures.svg import Picture
from mpcourse.schedules.actions import Schedule
from mpcourse.schedules.builder import UNITS, Builder
from mpcourse.schedules.simulation import simulate
from mpcourse.schedules.standard import one_f_one_b_schedule
from mpcourse.widgets.panel import Panel


class ScheduleBoard(Panel):
    """Buttons that add the next action of a kind to a device, and the schedule so far.

    A button that stands for an illegal move may be pressed: the reason is shown, nothing changes.

    Args:
        builder: What the buttons act on.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.buttons: dict[tuple[int, str], ipywidgets.Button] = {}
        self.message = ipywidgets.HTML()
        self.view = ipywidgets.HTML()
        rows = []
        for stage in range(builder.num_stages):
            for kind in "FB":
                button = ipywidgets.Button()
                button.on_click(lambda _, key=(stage, kind): self.press(*key))
                self.buttons[stage, kind] = button
            own = [self.buttons[stage, kind] for kind in "FB"]
            rows.append(ipywidgets.HBox([ipywidgets.Label(f"device {stage}"), *own]))
        back = ipywidgets.Button(description="undo")
        back.on_click(lambda _: self.undo())
        self._show()
        super().__init__([*rows, back, self.message, self.view])

    @property
    def schedule(self) -> Schedule:
        """What has been built so far: a list per device."""
        return self.builder.schedule

    def press(self, stage_index: int, kind: str) -> None:
        """Add a stage's next action of that kind, or show why that is illegal."""
        move = str(self.builder.next_of(stage_index, kind))
        reason = self.builder.why_not(move)
        if reason is None:
            self.builder.add(move)
        self._show(f"{move} refused: {reason}" if reason else f"{move} added")

    def undo(self) -> None:
        """Take the last move back, if there is one."""
        words = "the last move is taken back" if self.builder.moves else "no move yet"
        self.builder.undo()
        self._show(words)

    def _show(self, words: str = "no move yet") -> None:
        for (stage, kind), button in self.buttons.items():
            move = self.builder.next_of(stage, kind)
            left = move.microbatch_index < self.builder.num_microbatches
            button.description, button.disabled = f"add {move}" if left else "all done", not left
        if self.builder.is_complete:
            words += f"; complete, it takes {self.builder.timeline.makespan:g}: run the check"
        self.message.value = f"<b>{escape(words)}</b>"
        self.view.value = board_picture(self.builder).svg

    def __repr__(self) -> str:
        return "<board: build a schedule by hand; run the cell to press its buttons>"


def board_picture(builder: Builder) -> Picture:
    """What a board shows: the actions so far, simulated, and what is held.

    The axis reaches at least as far as 1F1B, so that boxes keep their size from move to move.
    """
    timeline = builder.timeline
    usual = one_f_one_b_schedule(builder.num_stages, builder.num_microbatches)
    state = "complete" if builder.is_complete else "not complete"
    cap = "" if builder.max_activations is None else f", cap {builder.max_activations}"
    return memory_picture(
        timeline,
        [f"device {index}" for index in range(builder.num_stages)],
        label="simulated",
        unit="units",
        caption=f"{len(builder.moves)} actions, {state}; time so far {timeline.makespan:g}{cap}",
        horizon=simulate(usual, UNITS).makespan,
    )
