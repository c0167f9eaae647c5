"""Explorers of layouts: a model, ranks and links; the time of each layout."""

from collections.abc import Iterable
from dataclasses import replace

import ipywidgets

from mpcourse.figures import LayoutTime, layouts_picture
from mpcourse.figures.svg import Picture
from mpcourse.transformer.performance_model import (
    AXES,
    Cluster,
    DecoderSizes,
    Layout,
    held_bytes,
    layouts,
    step_seconds,
)
from mpcourse.transformer.published import (
    HOPPER,
    LARGE,
    PUBLISHED,
    RECENT,
    mixtral,
    recent,
    spread_of_ratios,
)
from mpcourse.widgets.explorer import Explorer, slider_over

MODELS = {
    f"{row.billions:g} billion": row.model
    for row in PUBLISHED
    if row.paper == LARGE and row.billions in (1.7, 7.5, 39.1, 145.6, 1008)
}
RANKS = [8, 16, 32, 64, 128, 256, 512, 1024]
SPEEDS = [1, 3, 6, 12.5, 25, 50, 100, 300]  # 10^9 bytes per second, each way
SHOWN = 10
DENSE = ("tensor", "data", "pipeline")  # axes of a layout without context ranks
SAMPLES = [8192, 32768, 131072, 524288]  # tokens of a sample
STEP = 2**22  # tokens of all samples of a step
MIXTURES = {
    "8 experts, 2 for each token": mixtral(4096),
    "64 of an eighth, 8 for each token": mixtral(4096, experts=64),
}


def layout_explorer() -> Explorer:
    """Choose a model, ranks, links, and what stands inside a host."""
    controls = {
        "model": ipywidgets.Dropdown(
            options=list(MODELS), value="39.1 billion", description="parameters"
        ),
        "ranks": slider_over("ranks", RANKS, 64),
        "batch": slider_over("samples of a step", [64, 128, 256, 512, 1024, 2048], 512),
        "inside": slider_over("links inside a host", _links(), 300),
        "between": slider_over("links between hosts", _links(), 25),
        "neighbours": _neighbours(DENSE),
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
    caption = f"{model} parameters on {ranks} ranks, {batch} samples: tensor x pipeline x data"
    found = layouts(sizes, batch, ranks, _order(neighbours))
    return _fastest(sizes, batch, found, cluster, spread_of_ratios(Cluster()), caption)


def context_explorer() -> Explorer:
    """Choose how long the samples are and how many context ranks share one; dense, 70 billion."""
    controls = {
        "tokens": slider_over("tokens of a sample", [(f"{n:,}", n) for n in SAMPLES], 131072),
        "context": _number("context ranks", (1, 2, 4, 8, 16, 32)),
        "ranks": slider_over("ranks", RANKS[3:], 512),
        "between": slider_over("links between hosts", _links(), 50),
        "neighbours": _neighbours(AXES),
    }
    about = "step time by length of the samples and context ranks"
    shown = {"tokens": None, "context": None, "neighbours": ("tensor", "context")}
    return Explorer(context_view, controls, about=about, shown=shown)


def context_view(
    tokens: int = 131072,
    context: int = 0,
    ranks: int = 512,
    between: float = 50,
    neighbours: str = "tensor",
) -> Picture:
    """What `context_explorer` shows: a decoder as Llama 3 with 70 billion parameters.

    Args:
        tokens: Of a sample; a step has 4,194,304.
        context: How many ranks share a sample; any number when 0.
        ranks: How many, eight H100 with 80 GB in a host.
        between: Each rank's link out of its host, 10^9 bytes per second each way.
        neighbours: The axis whose ranks are neighbours in number, so inside a host.
    """
    mlp = 3 * 28672 / 8192
    sizes = DecoderSizes(8192, 80, 64, 128256, tokens, key_heads=8, mlp=mlp, fused=True)
    batch, cluster = STEP // tokens, replace(HOPPER, between=between * 1e9)
    contexts = (context,) if context else (1, 2, 4, 8, 16, 32, 64)
    found = layouts(sizes, batch, ranks, _order(neighbours), contexts=contexts)
    caption = f"{batch} x {tokens:,} tokens, {ranks} ranks: tensor x pipeline x data, context"
    band = spread_of_ratios(HOPPER, recent("context"))
    return _fastest(sizes, batch, found, cluster, band, caption)


def expert_explorer() -> Explorer:
    """Choose a mixture of experts and how many expert ranks share them; 141 billion numbers."""
    controls = {
        "model": ipywidgets.Dropdown(options=list(MIXTURES), description="each layer has"),
        "expert": _number("expert ranks", (1, 2, 4, 8)),
        "ranks": slider_over("ranks", RANKS[3:], 128),
        "between": slider_over("links between hosts", _links(), 50),
        "neighbours": _neighbours(DENSE),
    }
    about = "step time of a mixture by its experts and expert ranks"
    shown = {"model": None, "expert": None, "neighbours": ("tensor", "data")}
    return Explorer(expert_view, controls, about=about, shown=shown)


def expert_view(
    model: str = "8 experts, 2 for each token",
    expert: int = 0,
    ranks: int = 128,
    between: float = 50,
    neighbours: str = "tensor",
) -> Picture:
    """What `expert_explorer` shows: Mixtral 8x22B, 1024 samples of 4,096 tokens.

    Args:
        model: A key of `MIXTURES`; both have the same number of parameters.
        expert: How many ranks share the experts of a layer; any number when 0.
        ranks: How many, eight H100 with 80 GB in a host.
        between: Each rank's link out of its host, 10^9 bytes per second each way.
        neighbours: The axis whose ranks are neighbours in number, so inside a host.
    """
    sizes, cluster = MIXTURES[model], replace(HOPPER, between=between * 1e9)
    experts = (expert,) if expert else (1, 2, 4, 8, 16, 32, 64)
    found = layouts(sizes, 1024, ranks, _order(neighbours), experts=experts)
    caption = f"{model}; {ranks} ranks: tensor x pipeline x data, expert"
    alike = [row for row in RECENT if row.model.experts == sizes.experts]
    return _fastest(sizes, 1024, found, cluster, spread_of_ratios(HOPPER, alike), caption)


def _links() -> list[tuple[str, float]]:
    return [(f"{speed:g} GB/s", speed) for speed in SPEEDS]


def _neighbours(axes: Iterable[str]) -> ipywidgets.Dropdown:
    names = [(f"{axis} ranks", axis) for axis in axes]
    return ipywidgets.Dropdown(options=names, value="tensor", description="inside a host")


def _number(name: str, numbers: Iterable[int]) -> ipywidgets.SelectionSlider:
    return slider_over(name, [("any number", 0), *((str(n), n) for n in numbers)], 0)


def _order(neighbours: str) -> tuple[str, ...]:
    return (neighbours, *(axis for axis in AXES if axis != neighbours))


def _fastest(
    sizes: DecoderSizes,
    batch: int,
    found: Iterable[Layout],
    cluster: Cluster,
    band: float,
    caption: str,
) -> Picture:
    """The fastest layouts that fit, then the fastest that do not."""
    tried = {it: step_seconds(sizes, batch, it, cluster) for it in found}
    purposes = max(tried.values(), key=len)  # a layout without context ranks has no ring
    bars = []
    for it, seconds in tried.items():
        others = {"context": it.context, "expert": it.expert}
        name = f"{it.tensor} x {it.pipeline} x {it.data}"
        name += "".join(f", {axis} {ranks}" for axis, ranks in others.items() if ranks > 1)
        spent = {purpose: seconds.get(purpose, 0.0) for purpose in purposes}
        bars.append(LayoutTime(name, spent, held_bytes(sizes, batch, it)))
    bars.sort(key=lambda bar: (bar.held > cluster.memory, bar.total))
    fit = [bar for bar in bars if bar.held <= cluster.memory]
    rest = [bar for bar in bars if bar.held > cluster.memory]
    shown = fit[:SHOWN] + rest[: max(2, SHOWN - len(fit))]
    return layouts_picture(shown, cluster.memory, band=band, caption=caption)
