"""An explorer of layouts: a model, ranks and links; the time of each layout."""

from collections.abc import Iterable
from dataclasses import replace

import ipywidgets

from mpcourse.figures import LayoutTime, layouts_picture
from mpcourse.figures.svg import Picture, picture, text
from mpcourse.transformer.performance_model import (
    Cluster,
    DecoderSizes,
    Layout,
    held_bytes,
    layouts,
    step_seconds,
)
from mpcourse.transformer.published import BAND, HOPPER, LARGE, PUBLISHED, ROOM, mixtral
from mpcourse.widgets.explorer import Explorer, slider_over

LONG = DecoderSizes(8192, 80, 64, 128256, key_heads=8, mlp=3 * 28672 / 8192, fused=True)
"""As Llama 3 with 70 billion parameters (Grattafiori et al., 2024)."""
MODELS = {
    **{
        f"{row.billions:g} billion": row.model
        for row in PUBLISHED
        if row.paper == LARGE and row.billions in (7.5, 39.1, 145.6)
    },
    "70 billion": LONG,
    "8 experts, 2 for each token": mixtral(4096),
    "64 experts, 8 for each token": mixtral(4096, experts=64),
}
HOSTS = {"8 H100": HOPPER, "8 A100": Cluster()}
RANKS = [8, 16, 32, 64, 128, 256, 512, 1024]
SPEEDS = [1, 3, 6, 12.5, 25, 50, 100, 300]  # 10^9 bytes per second, each way
TOKENS = [2048, 8192, 32768, 131072]  # of a sample
STEP = 2**22  # tokens of all samples of a step
CONTEXTS, EXPERTS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64)
STATES = {"on one rank": (0,), "Adam's shared": (1,), "all shared": (3,), "any": (1, 3)}
SHOWN = 10


def layout_explorer() -> Explorer:
    """Choose a model, its samples, ranks, links, and who shares samples, experts and states."""
    controls = {
        "model": ipywidgets.Dropdown(
            options=list(MODELS), value=next(reversed(MODELS)), description="model"
        ),
        "tokens": slider_over("tokens of a sample", [(f"{n:,}", n) for n in TOKENS], 8192),
        "ranks": slider_over("ranks", RANKS, 128),
        "hosts": ipywidgets.Dropdown(options=list(HOSTS), description="in each host"),
        "between": slider_over("links between hosts", _links(), 50),
        "context": _number("context ranks", CONTEXTS),
        "expert": _number("expert ranks", EXPERTS),
        "states": ipywidgets.Dropdown(options=list(STATES), value="any", description="states"),
    }
    about = "step time of each layout, by model, samples and ranks"
    shown = {"model": None, "tokens": (8192, 131072), "context": (0, 1), "expert": (0, 1, 8)}
    return Explorer(layout_view, controls, about=about, shown=shown)


def layout_view(
    model: str = "64 experts, 8 for each token",
    tokens: int = 8192,
    ranks: int = 128,
    hosts: str = "8 H100",
    between: float = 50,
    context: int = 0,
    expert: int = 0,
    states: str = "any",
) -> Picture:
    """What the explorer shows: the fastest layouts that fit, some slower ones, and that do not fit.

    A layout fits with `ROOM` of the memory. Shaded is what the model's error cannot tell from the
    fastest, up to `BAND`. A step has 4,194,304 tokens.

    Args:
        model: A key of `MODELS`; the mixtures have 141 billion parameters.
        tokens: Of a sample.
        ranks: How many.
        hosts: What a host has, as a key of `HOSTS`.
        between: Each rank's link out of its host, 10^9 bytes per second each way.
        context: How many ranks share a sample; any number when 0.
        expert: How many ranks share the experts of a layer; any number when 0.
        states: What data and context ranks share, as a key of `STATES`.
    """
    sizes, batch = replace(MODELS[model], context=tokens), STEP // tokens
    cluster = replace(HOSTS[hosts], between=between * 1e9)
    more = {
        "contexts": (context,) if context else CONTEXTS,
        "experts": (expert,) if expert else EXPERTS,
        "sharded": STATES[states],
    }
    found = list(layouts(sizes, batch, ranks, **more))
    caption = f"{model}; {batch} x {tokens:,} tokens, {ranks} ranks: tensor x pipeline x data, "
    caption += f"c {context or 'any'}, e {expert or 'any'}"
    if not found:
        words = f"{caption}: none comes out even"
        size = (760, 60)
        return picture([text(16, 30, words)], size, title="No layout", description=words)
    return _fastest(sizes, batch, found, cluster, caption)


def _links() -> list[tuple[str, float]]:
    return [(f"{speed:g} GB/s", speed) for speed in SPEEDS]


def _number(name: str, numbers: Iterable[int]) -> ipywidgets.SelectionSlider:
    return slider_over(name, [("any number", 0), *((str(n), n) for n in numbers)], 0)


def _fastest(
    sizes: DecoderSizes,
    batch: int,
    found: Iterable[Layout],
    cluster: Cluster,
    caption: str,
) -> Picture:
    """The fastest layouts that fit, and some that are slower; then the fastest that do not fit."""
    memory = ROOM * cluster.memory
    tried = []  # whether it does not fit, seconds, by purpose, bytes held
    for it in found:
        seconds, held = step_seconds(sizes, batch, it, cluster), held_bytes(sizes, batch, it)
        tried.append((held > memory, sum(seconds.values()), seconds, held, it))
    tried.sort(key=lambda each: each[:2])
    fit = [each for each in tried if not each[0]]
    rest = tried[len(fit) :]
    later = fit[SHOWN // 2 :]
    some = later[:: max(1, -(-len(later) // (SHOWN - SHOWN // 2)))]  # as far apart as the rest goes
    shown = fit[: SHOWN // 2] + some + rest[: max(2, SHOWN - len(fit))]
    # a layout without context ranks has no ring
    purposes = max((seconds for _, _, seconds, _, _ in tried), key=len)
    bars = []
    for _, _, seconds, held, it in shown:
        spent = {purpose: seconds.get(purpose, 0.0) for purpose in purposes}
        bars.append(LayoutTime(_name(it), spent, held))
    return layouts_picture(bars, memory, band=BAND, caption=caption)


def _name(it: Layout) -> str:
    """Tensor x pipeline x data ranks, then what else is cut."""
    others = {"c": it.context, "e": it.expert, "s": it.sharded}
    more = [f"{axis} {ranks}" for axis, ranks in others.items() if ranks > (axis != "s")]
    name = f"{it.tensor}x{it.pipeline}x{it.data}"
    return f"{name}, {' '.join(more)}" if more else name
