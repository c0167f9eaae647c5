"""Step times from papers, to compare `step_seconds` with.

`PUBLISHED` is held against it on page `choose_a_layout`. Quoted from arXiv:2104.04473, table 1
(Narayanan et al., 2021), as transcribed in MLCarbon's data; arXiv:2205.05198, table 5 (Korthikanti
et al., 2022), as transcribed in Calculon's validation; and arXiv:2201.11990, section 2.4 (Smith et
al., 2022), as quoted by llm-analysis. For the first table the paper's section 5.1 says that its
schedule is interleaved, but not into how many chunks: 1 is taken. With three the row that is
missed by most is 7% off in place of 5. In all rows the backward runs every block's forward
again.

`RECENT` has context and expert ranks, on hosts with eight H100. Quoted from arXiv:2407.21783, table
4 (Grattafiori et al., 2024: Llama 3 with 405 billion parameters), as transcribed in notes on
Stanford's CS336, lecture 8; and from arXiv:2504.14960, tables 3 to 5 (D. Liu et al., 2025: Mixtral
8x22B and its variant G8T8, rows "TP + EP + DP" and "MCore"), as transcribed from its appendix;
tables 3 and 4 stand in RAPID-LLM's validation, too. Both papers give operations per second, or
their share of the peak; three passes with all scores are taken to be counted, as in
arXiv:2204.02311, which the first cites. What they do not give is taken to be so: as many chunks as
the blocks allow (7 for Mixtral, as in Megatron's own table of mappings; with fewer the predictions
for Llama drift apart more); no forward runs twice but for Llama's samples of 131,072 tokens, since
the paper says "without activation checkpointing" of those of 8,192.

`PEAKS` is quoted from table 2 of benchmarks/llama3_h100_202412_torchtitan.md in torchtitan's
repository (2024; its paper is arXiv:2410.06511): Llama 3.1 with 8 billion parameters, all states
sharded over 8 H100 with 96 GB, one sample on each data rank, every block recomputed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpcourse.transformer.performance_model import (
    Cluster,
    DecoderSizes,
    Layout,
    held_bytes,
    step_seconds,
)

LLAMA = "Grattafiori et al. 2024"
MIXTRAL = "Liu et al. 2025"
FINE = "Liu et al. 2025, 64 experts"
LARGE = "Narayanan et al. 2021"
RECOMPUTED = "Korthikanti et al. 2022"
TURING = "Smith et al. 2022"
HOPPER = Cluster(flops=989.5e12, moved=3.35e12, inside=450e9, between=50e9)
"""DGX H100 hosts with 80 GB.

`reached` is that of the A100 hosts, fitted there: no row of these hosts has set it.
"""


@dataclass(frozen=True)
class Published:
    """One row of a paper."""

    paper: str  # authors and year
    billions: float  # of parameters, as the paper rounds them
    model: DecoderSizes
    layout: Layout
    batch: int  # samples of a step
    seconds: float  # of a step, as measured there

    def predicted(self, cluster: Cluster) -> float:
        """Seconds of the step by arithmetic."""
        return sum(step_seconds(self.model, self.batch, self.layout, cluster).values())


def spread_of_ratios(cluster: Cluster, rows: Sequence[Published]) -> float:
    """How far predictions drift apart where they should err alike: with as many experts.

    Of such rows, of whatever paper, the largest predicted / quoted over the smallest; of these
    spreads the widest.
    """
    ratios: dict[int, list[float]] = {}
    for row in rows:
        ratios.setdefault(row.model.experts, []).append(row.predicted(cluster) / row.seconds)
    return max(max(alike) / min(alike) for alike in ratios.values())


def _seconds(
    model: DecoderSizes, batch: int, ranks: int, teraflops: float, passes: int = 4
) -> float:
    """Of a step whose speed was published: work by the first paper's equation 3."""
    operations = passes * model.layers * model.block_operations + 6 * model.vocabulary * model.width
    return batch * model.context * operations / (ranks * teraflops * 1e12)


# billions, heads, width, layers, tensor, pipeline, ranks, batch, 10^12 operations/s for each rank
_TABLE_1 = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
    (1008, 160, 25600, 128, 8, 64, 3072, 3072, 163),
)
# billions, heads, width, layers, pipeline, chunks, batch, seconds
_TABLE_5 = (
    (22, 64, 6144, 48, 1, 1, 4, 1.42),
    (175, 96, 12288, 96, 8, 3, 64, 18.13),
    (530, 128, 20480, 105, 35, 3, 280, 49.05),
    (1000, 160, 25600, 128, 64, 1, 512, 94.42),
)
# tokens, context, data, samples, 10^12 operations/s for each rank, forward twice
_LLAMA = (
    (8192, 1, 64, 2048, 430, False),
    (8192, 1, 128, 2048, 400, False),
    (131072, 16, 8, 128, 380, True),
)
# experts, tokens, ranks, context, tensor, expert, pipeline, samples, share of the peak
_MIXTRAL = (
    (8, 4096, 128, 1, 4, 8, 1, 256, 0.366),
    (8, 4096, 128, 1, 2, 4, 8, 256, 0.463),
    (8, 4096, 128, 1, 2, 4, 8, 1024, 0.494),
    (8, 4096, 256, 1, 2, 4, 8, 1024, 0.480),
    (8, 4096, 512, 1, 2, 4, 8, 1024, 0.455),
    (8, 4096, 1024, 1, 2, 4, 8, 1024, 0.423),
    (8, 16384, 128, 4, 2, 4, 8, 1024, 0.453),
    (8, 32768, 256, 8, 2, 4, 8, 512, 0.432),
    (8, 65536, 512, 16, 2, 4, 8, 256, 0.426),
    (8, 131072, 1024, 16, 4, 8, 8, 128, 0.382),
    (64, 4096, 128, 1, 8, 8, 1, 256, 0.087),
    (64, 4096, 128, 1, 2, 8, 8, 256, 0.171),
    (64, 4096, 128, 1, 2, 8, 8, 1024, 0.198),
    (64, 4096, 256, 1, 2, 8, 8, 1024, 0.184),
    (64, 4096, 512, 1, 2, 8, 8, 1024, 0.163),
    (64, 4096, 1024, 1, 2, 8, 8, 1024, 0.134),
)


def llama(context: int) -> DecoderSizes:
    """Llama 3 with 405 billion parameters.

    It has 126 layers; embedding and logits take the places of two more in its 16 stages.
    """
    mlp = 3 * 53248 / 16384  # three matrices
    return DecoderSizes(16384, 128, 128, 128256, context, key_heads=8, mlp=mlp, fused=True)


def mixtral(context: int, experts: int = 8) -> DecoderSizes:
    """Mixtral 8x22B, each token to two of 8 experts; or, to eight of 64, each an eighth as wide."""
    mlp, k = 3 * 16384 / 6144 * 8 / experts, 2 if experts == 8 else 8
    routed = {"experts": experts, "k": k}
    return DecoderSizes(6144, 56, 48, 32000, context, key_heads=8, mlp=mlp, fused=True, **routed)


def _table_1() -> list[Published]:
    rows = []
    for billions, heads, width, layers, tensor, pipeline, ranks, batch, speed in _TABLE_1:
        model = DecoderSizes(width, layers, heads)
        layout = Layout(tensor, ranks // tensor // pipeline, pipeline)
        seconds = _seconds(model, batch, ranks, speed)
        rows.append(Published(LARGE, billions, model, layout, batch, seconds))
    return rows


def _table_5() -> list[Published]:
    rows = []
    for billions, heads, width, layers, pipeline, chunks, batch, seconds in _TABLE_5:
        model, layout = DecoderSizes(width, layers, heads), Layout(8, 1, pipeline, chunks)
        rows.append(Published(RECOMPUTED, billions, model, layout, batch, seconds))
    return rows


def _turing() -> list[Published]:
    """Hosts like the first table's; nothing here says why their steps took a quarter longer."""
    model = DecoderSizes(20480, 105, 128)
    measured = {8: 60.1, 10: 50.2, 12: 44.4}
    return [
        Published(TURING, 530, model, Layout(8, data, 35), 1920, seconds)
        for data, seconds in measured.items()
    ]


PUBLISHED: tuple[Published, ...] = (*_table_1(), *_table_5(), *_turing())
"""14 rows of two papers that the model predicts within 15%, and 3 of a third that it misses.

The three took about a quarter longer than predicted.
"""


def _recent() -> list[Published]:
    rows = []
    for tokens, context, data, batch, speed, recompute in _LLAMA:
        layout = Layout(8, data, 16, 8, context=context, recompute=recompute)
        model = llama(tokens)
        counted = replace(model, layers=126)
        seconds = _seconds(counted, batch, layout.ranks, speed, passes=3)
        rows.append(Published(LLAMA, 405, model, layout, batch, seconds))
    for experts, tokens, ranks, context, tensor, expert, pipeline, batch, share in _MIXTRAL:
        model, data = mixtral(tokens, experts), ranks // context // tensor // pipeline
        axes = {"context": context, "expert": expert, "recompute": False}
        layout = Layout(tensor, data, pipeline, chunks=7 if pipeline > 1 else 1, **axes)
        seconds = _seconds(model, batch, ranks, share * HOPPER.flops / 1e12, passes=3)
        paper = MIXTRAL if experts == 8 else FINE
        rows.append(Published(paper, 141, model, layout, batch, seconds))
    return rows


RECENT: tuple[Published, ...] = tuple(_recent())
"""19 rows of two papers; nothing was set by them, and almost all took longer than predicted."""

BAND = max(spread_of_ratios(Cluster(), PUBLISHED), spread_of_ratios(HOPPER, RECENT))
"""Layouts whose predicted times differ by less than this factor are not told apart."""


def _peaks() -> list[tuple[DecoderSizes, int, Layout, float]]:
    mlp = 3 * 14336 / 4096
    model = DecoderSizes(4096, 32, 32, 128256, 32768, key_heads=8, mlp=mlp, fused=True)
    quoted = {1: 83.9, 2: 84.2, 4: 84.0, 8: 84.5}  # GiB, by context ranks
    return [
        (
            replace(model, context=32768 * context),
            8 // context,
            Layout(data=8 // context, context=context, sharded=3),
            peak * 2**30,
        )
        for context, peak in quoted.items()
    ]


PEAKS: tuple[tuple[DecoderSizes, int, Layout, float], ...] = tuple(_peaks())
"""Model, samples, layout, and the bytes that the fullest GPU's allocator had reserved."""

ROOM = min(held_bytes(*given) / peak for *given, peak in PEAKS)
"""The share of a rank's memory that predicted bytes may fill: so much too low they have been."""
