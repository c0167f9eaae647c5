"""An explorer of memory: a model, ranks, what they share; the bytes of one rank."""

import ipywidgets

from mpcourse.figures import byte_bars
from mpcourse.figures.svg import Picture
from mpcourse.memory.per_rank import MODELS, LanguageModel, bytes_per_rank
from mpcourse.widgets.explorer import Explorer, slider, slider_over

OWN = "sizes from the sliders"


def fit_explorer() -> Explorer:
    """Choose a model or its sizes, batch, ranks, what is sharded, and whether to recompute."""
    parameters = [100e6, 300e6, 1e9, 3e9, 7e9, 13e9, 30e9, 70e9, 180e9]
    controls = {
        "name": ipywidgets.Dropdown(options=[OWN, *MODELS], value=OWN, description="model"),
        "parameters": slider_over(
            "parameters", [(f"{number / 1e9:g} billion", number) for number in parameters], 7e9
        ),
        "layers": slider("layers", 32, 1, 128),
        "width": slider("width", 4096, 256, 16384, step=256),
        "batch": slider("samples on a rank", 1, 1, 64),
        "ranks": slider("ranks", 4, 1, 64),
        "stage": slider("stage of sharding", 1, 0, 3),
        "recompute": ipywidgets.Dropdown(
            options=[("no", False), ("yes", True)], description="recompute"
        ),
    }

    def use_sliders(_: object) -> None:
        controls["name"].value = OWN  # a slider that moved nothing would look broken

    for size in ("parameters", "layers", "width"):
        controls[size].observe(use_sliders, names="value")

    def draw(
        name: str, parameters: float, layers: int, width: int, **settings: int | bool
    ) -> Picture:
        model = MODELS.get(name) or LanguageModel(parameters, layers, width, 4096)
        return fit_view(name, model, **settings)

    about = "bytes of a rank, by what is sharded and recomputed"
    powers = (1, 2, 4, 8, 16, 32, 64)
    shown = {"name": tuple(MODELS), "batch": powers, "ranks": powers}
    shown |= {"stage": None, "recompute": None}
    return Explorer(draw, controls, about=about, shown=shown)


def fit_view(
    name: str,
    model: LanguageModel | None = None,
    *,
    batch: int = 1,
    ranks: int = 4,
    stage: int = 0,
    recompute: bool = False,
) -> Picture:
    """What the explorer shows: one rank alone, and one of the ranks as chosen.

    Args:
        name: Of the model.
        model: Its sizes; those that were published under the name when `None`.
        batch: Samples on a rank.
        ranks: How many.
        stage: Of ZeRO, 0 to 3.
        recompute: Whether blocks are recomputed.
    """
    model = model or MODELS[name]
    chosen = bytes_per_rank(model, batch=batch, ranks=ranks, stage=stage, recompute=recompute)
    bars = {"one rank": bytes_per_rank(model, batch=batch), f"one of {ranks} ranks": chosen}
    how = f"stage {stage}, {'' if recompute else 'not '}recomputed"
    count = f"{model.parameters / 1e9:.3g} billion parameters"
    return byte_bars(bars, caption=f"{name}, {count}; below: {how}")
