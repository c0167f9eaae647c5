"""Which parallelism goes on which dimension of a mesh: cases and wrong answers.

Page `torch_pipelining`.
"""

from collections.abc import Sequence
from typing import Any

from mpcourse.checks.verdict import Case, short

# From what crosses rarely to what crosses often, and what each one mends, as in the page's table.
BY_CROSSING = ("ddp", "pipeline", "fsdp", "tensor")
MENDS = {"all layers": "pipeline", "weights": "fsdp", "one layer": "tensor"}
INSTEAD = (
    ("one layer", "fsdp", "FSDP gathers a whole layer to compute it: too large stays too large."),
    ("one layer", "pipeline", "A pipeline cuts between layers: one layer stays whole."),
    ("weights", "tensor", "Tensor parallelism talks inside every layer; the table has FSDP here."),
    ("weights", "pipeline", "The table takes a pipeline when all layers together do not fit."),
    (
        "all layers",
        "fsdp",
        "FSDP sends every layer's weights; a pipeline sends at its borders only.",
    ),
)
# What does not fit, and the links in GB/s. No pipeline beside DDP: there the bytes decide.
DIMENSIONS: tuple[tuple[tuple[str, ...], tuple[float, ...]], ...] = (
    (("one layer",), (25, 400)),
    (("weights",), (25, 400)),
    (("weights",), (400, 25)),
    (("one layer", "all layers"), (25, 400)),
    (("weights", "one layer"), (25, 400)),
    (("weights", "all layers"), (300, 100)),
    ((), (25, 400)),
    (("one layer", "weights", "all layers"), (100, 900, 400)),
)


def _by_link(lacking: Sequence[str], links: Sequence[float], mends: dict[str, str]) -> list[str]:
    """What crosses more often on the faster links, and DDP for what is left."""
    kinds = [mends[what] for what in lacking] + ["ddp"] * (len(links) - len(lacking))
    kinds.sort(key=BY_CROSSING.index)
    order = sorted(range(len(links)), key=links.__getitem__)
    placed = dict(zip(order, kinds, strict=True))
    return [placed[dimension] for dimension in range(len(links))]


def dimension_cases() -> list[Case]:
    """Meshes of two and three dimensions, the fastest links at either end or in the middle."""
    return [_case(*given) for given in DIMENSIONS]


def _case(lacking: Sequence[str], links: Sequence[float]) -> Case:
    right = _by_link(lacking, links, MENDS)
    taken = [MENDS[what] for what in lacking]
    known: list[tuple[Any, str]] = [
        (sorted(right, key=BY_CROSSING.index), "The fastest links are not always the last ones."),
        (
            _by_link(lacking, [-link for link in links], MENDS),
            "The other way round: what crosses often takes the fast links.",
        ),
        (
            taken + ["ddp"] * (len(links) - len(taken)),
            "That is the order of the question: go by how often and how fast.",
        ),
        (taken, "Every dimension takes one: DDP takes what is left."),
        (["ddp"] * len(links), "Under DDP every rank holds the whole model."),
    ]
    for what, other, message in INSTEAD:
        if what in lacking:
            known.append((_by_link(lacking, links, MENDS | {what: other}), message))
    given = f"{short(list(lacking))} and links of {short(list(links))} GB/s"
    hint = 'First the names from the table, and "ddp" for what is left; then the links, by speed.'
    return Case(given, (list(lacking), list(links)), right, known, hint)
