"""An explorer of schedules: the timeline, and what the devices hold."""

from textwrap import wrap

import ipywidgets

from mpcourse.figures import memory_picture, svg
from mpcourse.schedules.named import NAMED, make_schedule
from mpcourse.schedules.simulation import Costs, count_transfers, simulate
from mpcourse.widgets.explorer import Explorer, slider


def schedule_explorer() -> Explorer:
    """Choose a schedule and its costs; see its timeline, its idle share and what is held.

    A backward takes as long whole (B) as in its two halves (I and W) together. With two stages a
    device, a stage is half as large: in time and in activations, not in what it sends.
    """
    controls = {
        "schedule": ipywidgets.ToggleButtons(  # arrow keys in a Dropdown would leave the cell
            options=list(NAMED),
            value="1f1b",
            description="schedule",
            style={"button_width": "6em"},
        ),
        "devices": slider("devices", 4, 1, 6),
        "microbatches": slider("micro-batches", 8, 1, 12),
        "forward": slider("time of F", 1, 1, 4),
        "backward": slider("time of B, or I + W", 2, 1, 4),
        "transfer": slider("time of a transfer", 0, 0, 4),
        "shown": slider("shown so far (%)", 100, 0, 100, step=2),
    }
    about = "a schedule's timeline and what its devices hold"
    shown = {
        "schedule": None,
        "devices": (2, 4, 6),
        "microbatches": (2, 4, 8),
        "transfer": (0, 1, 2),
    }
    return Explorer(schedule_view, controls, about=about, play="shown", shown=shown)


def schedule_view(
    schedule: str = "1f1b",
    devices: int = 4,
    microbatches: int = 8,
    forward: float = 1,
    backward: float = 2,
    transfer: float = 0,
    shown: float = 100,
) -> svg.Picture:
    """What the explorer shows, for given values of its controls.

    Args:
        schedule: One of `mpcourse.schedules.NAMED`.
        devices: How many.
        microbatches: How many.
        forward: Time of a micro-batch's forward in a device's part of the model.
        backward: Time of its backward.
        transfer: Time from one device to the next.
        shown: Percentage of the step that has passed.
    """
    part = 1 / NAMED[schedule].stages_per_device
    try:
        plan = make_schedule(schedule, round(devices / part), devices, microbatches)
    except ValueError as error:  # interleaved: the rounds would differ
        return _refusal(f"{schedule} refused: {error}")
    half = backward * part / 2
    timeline = simulate(plan, Costs(forward * part, backward * part, transfer, half, half))
    caption = (
        f"{schedule}: time {timeline.makespan:g}, {timeline.bubble_fraction:.1%} idle, "
        f"{count_transfers(plan)} transfers"
    )
    return memory_picture(
        timeline,
        [f"device {index}" for index in range(devices)],
        label="simulated",
        unit="units",
        caption=caption,
        until=None if shown == 100 else timeline.makespan * shown / 100,
        activation_size=part,
    )


def _refusal(words: str) -> svg.Picture:
    lines = wrap(words, 90)
    shapes = [svg.text(20, 30 + 22 * number, line) for number, line in enumerate(lines)]
    size = (720, 40 + 22 * len(lines))
    return svg.picture(shapes, size, title="No schedule", description=words)
