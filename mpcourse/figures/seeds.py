"""The accuracies of several seeds, from a recording."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from mpcourse.figures import svg
from mpcourse.figures.marks import count


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
    bands = {recipe: (mean(values), stdev(values)) for recipe, values in accuracies.items()}
    everything = [value for values in accuracies.values() for value in values]
    low = min(min(everything) - 0.005, *(middle - spread for middle, spread in bands.values()))
    high = max(max(everything) + 0.005, *(middle + spread for middle, spread in bands.values()))
    left = max([120, *(8 * len(recipe) + 26 for recipe in accuracies)])  # a letter: < 8 pixels
    top, row, width = 56, 80, 480
    pixels = width / (high - low)

    def x_of(accuracy: float) -> float:
        return left + (accuracy - low) * pixels

    shapes = [svg.text(16, 26, f"measured on {about['machine']}, {about['date']} (a recording)")]
    spoken = []
    for index, (recipe, values) in enumerate(accuracies.items()):
        y = top + index * row
        middle, spread = bands[recipe]
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
