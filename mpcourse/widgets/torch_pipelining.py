"""The explorer of page `torch_pipelining`: who talks to whom on a mesh."""

import ipywidgets

from mpcourse.figures import mesh_picture
from mpcourse.widgets.explorer import Explorer, slider

SIZES = (1, 2, 4, 8)


def mesh_explorer(data: int = 2, pipeline: int = 4, rank: int = 5) -> Explorer:
    """Choose a mesh and a rank; see with whom it exchanges what.

    Args:
        data: Pipelines beside each other to begin with: 1, 2, 4 or 8.
        pipeline: Stages of each to begin with: 1, 2, 4 or 8.
        rank: Whose partners to begin with, 0 to 15.
    """
    sizes = {"data": data, "pipeline": pipeline}
    controls = {
        name: ipywidgets.SelectionSlider(options=SIZES, value=value, description=name)
        for name, value in sizes.items()
    }
    controls["rank"] = slider("rank", rank, 0, 15)
    return Explorer(mesh_picture, controls, about="who talks to whom on a mesh of ranks")
