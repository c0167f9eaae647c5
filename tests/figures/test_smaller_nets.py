"""Pictures of pruned and quantized nets show every number; studies count every weight."""

import dataclasses

import pytest
import torch
from sheets import BITS, SPARSITIES, Sheet, points

from mpcourse.figures import bits_picture, sparsity_picture
from mpcourse.pruning import magnitude
from mpcourse.quantization import calibrate
from mpcourse.training.nets import lenet_300_100
from mpcourse.widgets import bits_study, sparsity_study


def pruned(sparsity: float) -> Sheet:
    return Sheet(sparsity_picture(SPARSITIES, sparsity))


def quantized(bits: int, scales: str = "per channel") -> Sheet:
    return Sheet(bits_picture(BITS, bits, scales))


def test_what_is_drawn_is_said_in_words():
    for sheet, headline, parts in [
        (
            pruned(0.5),
            "50% of 100 weights are zero: 90.0% of the test digits right (40.0% with random ones)",
            ["50 of the 100 weights", "1 of 4 pixels are not read", "dense 4,000", "50%: 90.0%"],
        ),
        (
            quantized(8, "per tensor"),
            "8 bits, scales per tensor: 91.0% of the test digits right (95.0% in float32)",
            ["7 integers from -3 to 3, 50.0% of them 0", "at most 0.2", "packed 100", "8: 91.0%"],
        ),
    ]:
        assert sheet.words[0] == f"measured here; {headline}"
        assert sheet.description.startswith(sheet.words[0])
        assert all(part in sheet.description for part in parts)


def test_pixels_of_the_same_shade_are_one_path_with_their_numbers():
    found = [hint for hint in pruned(0.5).hints if "weights left" in hint]
    assert found == ["1 to 2 of 4 weights left", "4 to 4 of 4 weights left"]
    assert sum("weights left" in hint for hint in pruned(0).hints) == 1


def bars(sheet: Sheet) -> dict[str, float]:
    """The lengths of the bars of bytes."""
    return {b["hint"]: float(b["width"]) for b in sheet.boxes if b["hint"].endswith(" bytes")}


def test_bars_are_as_long_as_there_are_bytes_on_one_scale_for_all_sparsities():
    assert bars(quantized(2)) == {
        "float32: 400 bytes": 210,
        "int8: 100 bytes": pytest.approx(52.5),
        "2 bits, packed: 25 bytes": pytest.approx(13.12, abs=0.01),
    }
    whole, half, tenth = (list(bars(pruned(sparsity)).values()) for sparsity in (0, 0.5, 0.9))
    assert whole == [pytest.approx(half[0]), pytest.approx(2 * half[1], abs=0.1)]
    assert whole[1] == pytest.approx(2 * whole[0], abs=0.1)
    assert tenth[0] == whole[0]


def test_the_highest_bar_is_the_most_frequent_integer():
    corners = points(quantized(2).hinted("weights by their integer", "path")["d"])
    top = min(y for _, y in corners)
    highest = [x for x, y in corners if y == top]
    assert 16 + 250 / 3 < min(highest) < max(highest) < 16 + 500 / 3  # the middle one of three
    heights = sorted({corners[0][1] - y for _, y in corners})
    assert heights == pytest.approx([0, 130 / 8, 130])  # the line, ten weights, eighty weights


def test_every_accuracy_has_a_point_and_the_chosen_ones_a_ring():
    lines = {"this criterion": SPARSITIES.accuracies, "random weights": SPARSITIES.random}
    for chosen in SPARSITIES.kept:
        sheet = pruned(chosen)
        for name, values in lines.items():
            for sparsity, accuracy in values.items():
                middle(sheet, f"{name}, {sparsity:.0%} zero: {accuracy:.1%}")
        rings = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in sheet.each("circle")]
        named = [f"{n}, {chosen:.0%} zero: {values[chosen]:.1%}" for n, values in lines.items()]
        assert rings == [pytest.approx(middle(sheet, hint), abs=1) for hint in named]


def middle(sheet: Sheet, hint: str) -> tuple[float, float]:
    corners = points(sheet.hinted(hint, "path")["d"])
    return tuple(sum(axis) / len(corners) for axis in zip(*corners, strict=True))


def test_points_are_the_higher_the_more_accurate():
    for (bits, scales), found in BITS.rounded.items():
        sheet = quantized(bits, scales)
        ring = sheet.hinted("chosen", "circle")
        x, _ = middle(sheet, f"{bits} bits, {scales}: {found.accuracy:.1%}")
        assert float(ring["cx"]) == pytest.approx(x, abs=0.5)
        assert float(ring["cy"]) == pytest.approx(420 - 150 * found.accuracy, abs=0.01)


def test_what_the_study_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"sparsities are 0, 0\.5, 0\.9; got 0\.7"):
        sparsity_picture(SPARSITIES, 0.7)
    with pytest.raises(ValueError, match=r"the study has 2 per channel, .*; got 5 per channel"):
        bits_picture(BITS, 5)


def test_a_study_counts_weights_and_pixels_of_a_net():
    net = lenet_300_100()
    with torch.no_grad():
        net.fc1.weight[:, :28] = 0  # the first row of pixels
    accuracies = {0: 0.9, 0.9: 0.8}
    study = sparsity_study(net, magnitude(net), accuracies, accuracies, {0: {}, 0.9: {}})
    assert study.weights == 266_200
    assert (study.outputs, len(study.every)) == (300, 60)
    assert 0.998 * 266_200 < sum(study.every) <= 266_200  # the largest lie outside
    assert study.kept[0] == study.every
    assert sum(study.kept[0.9]) <= 26_620
    assert all(kept <= every for kept, every in zip(study.kept[0.9], study.every, strict=True))
    assert study.inputs[0] == [300] * 784
    assert study.inputs[0.9][:28] == [0] * 28
    assert sum(study.inputs[0.9]) < 26_620
    assert dataclasses.astuple(study)[6:8] == (accuracies, accuracies)


def test_a_study_counts_every_weight_in_every_way():
    net = lenet_300_100()
    for layer in (net.fc1, net.fc2, net.fc3):
        torch.nn.init.normal_(layer.weight)  # few large weights, as training leaves them
    ranges = calibrate(net, [torch.randn(8, 1, 28, 28)])
    seen = []
    study = bits_study(net, ranges, lambda model: seen.append(model) or len(seen) / 100)
    assert (study.weights, study.accuracy) == (266_200, 0.01)
    ways = ("per channel", "per tensor")
    assert list(study.rounded) == [(bits, way) for bits in range(2, 9) for way in ways]
    for (bits, _), each in study.rounded.items():
        assert len(each.integers) == 2**bits - 1
        assert sum(each.integers) == sum(each.errors) == 266_200
    channel, tensor = study.rounded[8, "per channel"], study.rounded[8, "per tensor"]
    assert channel.integers[0] + channel.integers[-1] >= 410  # a largest one in each row
    assert tensor.integers[0] + tensor.integers[-1] < 410
    assert channel.half_step <= 1.001 * tensor.half_step
    flat = [count / 266_200 * 40 for count in channel.errors]
    assert max(flat) < 1.3 * min(flat)
