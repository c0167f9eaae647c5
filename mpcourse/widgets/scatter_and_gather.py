"""The explorer of page `scatter_and_gather`: which device gets which rows."""

import ipywidgets
import torch

from mpcourse.data_parallel.scatter_gather import scatter
from mpcourse.figures import scatter_picture
from mpcourse.figures.svg import Picture
from mpcourse.widgets.explorer import Explorer, slider


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
