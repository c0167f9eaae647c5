"""The explorer of page `start_here`: two jobs and the idle share."""

from mpcourse.figures import timeline_picture
from mpcourse.figures.svg import Picture
from mpcourse.schedules.timeline import Event, Timeline
from mpcourse.widgets.explorer import Explorer, slider


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
