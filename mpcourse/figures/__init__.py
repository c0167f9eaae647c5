"""The course's pictures: data in, SVG or matplotlib axes out. Nothing here measures or shows."""

from mpcourse.figures.curves import plot_times
from mpcourse.figures.marks import LABELS, MARKERS, device_colour, device_letter
from mpcourse.figures.scatter import scatter_picture
from mpcourse.figures.timelines import timeline_picture

__all__ = [
    "LABELS",
    "MARKERS",
    "device_colour",
    "device_letter",
    "plot_times",
    "scatter_picture",
    "timeline_picture",
]
