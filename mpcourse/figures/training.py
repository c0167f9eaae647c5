"""What training leaves behind: gaps between runs, accuracies of seeds, digits read.

Page `train_mnist`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from mpcourse.figures import svg
from mpcourse.figures.marks import MARKERS, check_label, count, device_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 20  # up to so many places, each gets a marker and a tick


def plot_gaps(
    places: Sequence[float],
    gaps: Mapping[str, Sequence[float]],
    ax: "Axes",
    *,
    over: str,
    of: str,
    label: str = "measured here",
) -> "Axes":
    """Plot how far runs are apart, one line per name, on a logarithmic axis.

    Args:
        places: Where on the horizontal axis: steps, or numbers of micro-batches.
        gaps: Name -> one difference per place. One of 0 has no place on this axis: it is left out.
        ax: The matplotlib axes to draw into.
        over: What the places are, in words.
        of: What the differences are of, in words.
        label: "measured here", "simulated" or "quoted": where the numbers come from.

    Returns:
        `ax`.

    Raises:
        ValueError: A line has more or fewer values than there are places, or `label` is another.
    """
    check_label(label)
    few = len(places) <= FEW
    for index, (name, values) in enumerate(gaps.items()):
        if len(values) != len(places):
            raise ValueError(f"{name} has {len(values)} values; there are {len(places)} places")
        # thinner and dashed in turn, so that a line on top of another hides nothing
        style = {"color": device_colour(index), "linestyle": "-" if index % 2 == 0 else "--"}
        style["linewidth"] = max(2 - 0.5 * index, 1)
        if few:
            style |= {"marker": MARKERS[index % len(MARKERS)], "markerfacecolor": "none"}
        ax.plot(places, [float(v) if v > 0 else math.nan for v in values], label=name, **style)
    if few:
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(places), [str(place) for place in places])
    ax.set_yscale("log")
    ax.set_ylim(1e-17, 10)  # the rounding of float64 is near 1e-16
    ax.set_xlabel(over)
    ax.set_ylabel(f"difference of {of}")
    ax.set_title(label)
    ax.grid(alpha=0.3)
    ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return ax


def plot_digits(images: Sequence[Any], words: Sequence[str], axes: Iterable["Axes"]) -> None:
    """Show images of digits with words above each.

    Args:
        images: Arrays or tensors of shape (28, 28) or (1, 28, 28), on the CPU.
        words: What stands above each.
        axes: As many matplotlib axes, or more; those left over are blanked.

    Raises:
        ValueError: There are more or fewer words than images, or too few axes.
    """
    axes = list(axes)  # a grid's `.flat` can be gone through only once
    if len(words) != len(images) or len(axes) < len(images):
        numbers = f"{len(images)} images, {len(words)} words, {len(axes)} axes"
        raise ValueError(f"each image needs words and axes; got {numbers}")
    for ax in axes:
        ax.axis("off")
    for image, title, ax in zip(images, words, axes, strict=False):
        ax.imshow(image.reshape(28, 28).tolist(), cmap="gray_r")
        ax.set_title(title, fontsize=9)


def seeds_picture(
    accuracies: Mapping[str, Sequence[float]], about: Mapping[str, str]
) -> svg.Picture:
    """Draw each seed's accuracy as a point, with mean and spread, from a recording.

    Args:
        accuracies: Recipe -> accuracy of each seed, from 0 to 1; two seeds or more.
        about: Where the recording comes from: "machine" and "date".

    Raises:
        ValueError: A recipe has fewer than two seeds.
    """
    if any(len(each) < 2 for each in accuracies.values()):
        raise ValueError("each recipe needs the accuracies of two seeds or more")
    everything = [value for each in accuracies.values() for value in each]
    low, high = min(everything) - 0.005, max(everything) + 0.005
    left = max([120, *(8 * len(recipe) + 26 for recipe in accuracies)])  # a letter: < 8 pixels
    top, row, width = 56, 80, 480
    pixels = width / (high - low)

    def x_of(accuracy: float) -> float:
        return left + (accuracy - low) * pixels

    shapes = [svg.text(16, 26, f"measured on {about['machine']}, {about['date']} (a recording)")]
    spoken = []
    for index, (recipe, values) in enumerate(accuracies.items()):
        y = top + index * row
        middle, spread = mean(values), stdev(values)
        words = f"{count(len(values), 'seed')}: mean {middle:.2%}, spread {spread:.2%}"
        shapes.append(svg.text(left - 10, y + 26, recipe, anchor="end", middle=True))
        shapes.append(svg.text(left, y + 4, words, size=12))
        shapes.append(svg.line(left, y + 26, left + width, y + 26, colour="#dddddd"))
        band = (x_of(middle - spread), y + 14, 2 * spread * pixels, 24)
        shapes.append(svg.box(*band, colour="#56B4E9", hint=f"{recipe}, {words}"))
        shapes.append(svg.line(x_of(middle), y + 10, x_of(middle), y + 42, colour="#000000"))
        places = [x_of(value) - 6 for value in values]
        for seed, (value, level) in enumerate(zip(values, _levels(places, 13), strict=True)):
            point = (places[seed], y + 20 + 13 * level, 12, 12)
            hint = f"seed {seed}: {value:.1%}"
            shapes.append(svg.box(*point, colour="#E69F00", label=str(seed), hint=hint))
        each = ", ".join(f"{value:.1%}" for value in values)
        spoken.append(f"{recipe}, {words}; the seeds: {each}")
    size = (left + width + 40, top + len(accuracies) * row)
    title = "Accuracy of each seed on the test images (measured, a recording)"
    return svg.picture(shapes, size, title=title, description="; ".join(spoken))


def _levels(places: Sequence[float], width: float) -> list[int]:
    """For each place the smallest level at which it hides none of those before it."""
    levels: list[int] = []
    for place in places:
        near = {
            level
            for other, level in zip(places, levels, strict=False)
            if abs(other - place) < width
        }
        levels.append(next(level for level in range(len(places)) if level not in near))
    return levels
