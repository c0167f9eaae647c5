"""An explorer of layouts: a model, ranks and links; the time of each layout."""

import ipywidgets

from mpcourse.figures import LayoutTime, layouts_picture
from mpcourse.figures.svg import Picture
from mpcourse.transformer.performance_model import AXES, Cluster, held_bytes, layouts, step_seconds
from mpcourse.transformer.published import LARGE, PUBLISHED, spread_of_ratios
from mpcourse.widgets.explorer import Explorer, slider_over

MODELS = {
    f"{row.billions:g} billion": row.model
    for row in PUBLISHED
    if row.paper == LARGE and row.billions in (1.7, 7.5, 39.1, 145.6, 1008)
}
RANKS = [8, 16, 32, 64, 128, 256, 512, 1024]
SPEEDS = [1, 3, 6, 12.5, 25, 50, 100, 300]  # 10^9 bytes per second, each way
SHOWN = 10


def layout_explorer() -> Explorer:
    """Choose a model, ranks, links, and what stands inside a host."""
    links = [(f"{speed:g} GB/s", speed) for speed in SPEEDS]
    names = [f"{axis} ranks" for axis in AXES]
    controls = {
        "model": ipywidgets.Dropdown(
            options=list(MODELS), value="39.1 billion", description="parameters"
        ),
        "ranks": slider_over("ranks", RANKS, 64),
        "batch": slider_over("samples of a step", [64, 128, 256, 512, 1024, 2048], 512),
        "inside": slider_over("links inside a host", links, 300),
        "between": slider_over("links between hosts", links, 25),
        "neighbours": ipywidgets.Dropdown(
            options=list(zip(names, AXES, strict=True)), value="tensor", description="inside a host"
        ),
    }
    about = "step time of each layout, by model and links"
    shown = {"model": None, "ranks": None, "neighbours": None}
    return Explorer(layout_view, controls, about=about, shown=shown)


def layout_view(
    model: str = "39.1 billion",
    ranks: int = 64,
    batch: int = 512,
    inside: float = 300,
    between: float = 25,
    neighbours: str = "tensor",
) -> Picture:
    """What the explorer shows: the fastest layouts that fit, then the fastest that do not.

    Shaded is what the model's error cannot tell from the fastest.

    Args:
        model: How many parameters, as a key of `MODELS`.
        ranks: How many, eight in a host.
        batch: Samples of a step.
        inside: Links inside a host, 10^9 bytes per second each way.
        between: Each rank's link out of its host, likewise.
        neighbours: The axis whose ranks are neighbours in number, so inside a host.
    """
    sizes, cluster = MODELS[model], Cluster(inside=inside * 1e9, between=between * 1e9)
    order = (neighbours, *(axis for axis in AXES if axis != neighbours))
    bars = [
        LayoutTime(
            f"{layout.tensor} x {layout.pipeline} x {layout.data}",
            step_seconds(sizes, batch, layout, cluster),
            held_bytes(sizes, batch, layout),
        )
        for layout in layouts(sizes, batch, ranks, order)
    ]
    bars.sort(key=lambda bar: (bar.held > cluster.memory, bar.total))
    fit = [bar for bar in bars if bar.held <= cluster.memory]
    rest = [bar for bar in bars if bar.held > cluster.memory]
    shown = fit[:SHOWN] + rest[: max(2, SHOWN - len(fit))]
    caption = f"{model} parameters on {ranks} ranks, {batch} samples: tensor x pipeline x data"
    band = spread_of_ratios(Cluster())
    return layouts_picture(shown, cluster.memory, band=band, caption=caption)
