"""Bytes by purpose: live ones over the operations of a step, and what lies on which rank.

Pages `does_it_fit` and `sharded_data_parallel`: a purpose has one colour on both, in the explorer's
bars (`byte_bars`) as well.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpcourse.figures import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WEIGHTS, GRADIENTS, STATE, ACTIVATIONS = svg.COLOURS[:4]
LIVE = {
    "weights, state, batch": WEIGHTS,
    "activations": ACTIVATIONS,
    "gradients of weights": GRADIENTS,
    "on the way back": "#F0E442",
    "scratch": "#999999",
}
SHARED = {"W": (WEIGHTS, 3), "G": (GRADIENTS, 2), "S": (STATE, 1)}  # from which stage on


def plot_live(moments: Sequence[Mapping[str, float]], ax: "Axes") -> "Axes":
    """Stack the live bytes of each purpose over the operations of a step, and mark their peak.

    The axis ends soon after the first scratch: an optimizer's operations are many, and alike.

    Args:
        moments: The bytes by purpose (a key of `LIVE`) after each operation.
        ax: The matplotlib axes to draw into.
    """
    totals = [sum(now.values()) for now in moments]
    peak = totals.index(max(totals))
    scratch = [at for at, now in enumerate(moments) if now.get("scratch")]
    end = max(int(1.15 * min(scratch, default=len(moments))), peak + 1)
    foot = [0.0] * len(moments[:end])
    for purpose, colour in LIVE.items():
        sizes = [now.get(purpose, 0) / 1e6 for now in moments[:end]]
        top = [low + size for low, size in zip(foot, sizes, strict=True)]
        label = f"{purpose[0].upper()}: {purpose}"
        ax.fill_between(range(len(top)), foot, top, label=label, facecolor=colour)
        largest = [at for at, size in enumerate(sizes) if size == max(sizes)]
        at = largest[len(largest) // 2]
        if sizes[at] > 0.08 * totals[peak] / 1e6:  # room for a letter
            ink = "white" if colour == WEIGHTS else "black"
            middle = (foot[at] + top[at]) / 2
            ax.text(at, middle, label[0], ha="center", va="center", color=ink)
        foot = top
    ax.axvline(peak, color="black", linestyle=":", label="peak")
    ax.set(xlabel="operations of a step (the optimizer's: only the first)")
    ax.set(ylabel="live megabytes", xlim=(0, end - 1), ylim=(0, 1.05 * totals[peak] / 1e6))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=3)
    return ax


def stages_picture(ranks: int = 4) -> svg.Picture:
    """Draw what each rank keeps of weights, gradients and state in ZeRO's stages, part by part."""
    cell, left, step = 20, 90, 74
    pitch = cell * (ranks + 1)
    shapes, spoken = [], []
    for rank in range(ranks):
        x = left + rank * pitch + ranks * cell / 2
        shapes.append(svg.text(x, 22, f"rank {rank}", anchor="middle"))
    for stage in range(4):
        top = 34 + stage * step
        shapes.append(svg.text(16, top + 1.5 * cell, f"stage {stage}", middle=True))
        for row, (letter, (colour, first)) in enumerate(SHARED.items()):
            for rank in range(ranks):
                for part in range(ranks):
                    kept = stage < first or part == rank
                    look = {"colour": colour, "label": letter} if kept else {"colour": "#ffffff"}
                    x, words = left + rank * pitch + part * cell, "kept" if kept else "elsewhere"
                    shapes.append(svg.box(x, top + row * cell, cell, cell, hint=words, **look))
        cut = [letter for letter, (_, first) in SHARED.items() if stage >= first]
        spoken.append(f"stage {stage}: {', '.join(cut) or 'nothing'} shared out")
    size = (left + ranks * pitch, 34 + 4 * step)
    title = f"What each of {ranks} ranks keeps: weights (W), gradients (G), state (S)"
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))
