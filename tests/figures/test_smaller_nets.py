"""Pictures of pruned nets show every number; studies count every weight."""

import dataclasses

import pytest
import torch
from sheets import SPARSITIES, Sheet, points

from mpcourse.figures import sparsity_picture
from mpcourse.pruning import magnitude
from mpcourse.training.nets import lenet_300_100
from mpcourse.widgets import sparsity_study


def pruned(sparsity: float) -> Sheet:
    return Sheet(sparsity_picture(SPARSITIES, sparsity))


def test_what_is_drawn_is_said_in_words():
    sheet = pruned(0.5)
    headline = "50% of 100 weights are zero: 90.0% of the held-out digits right (40.0% with random"
    assert sheet.words[0] == f"measured here; {headline} ones)"
    assert sheet.description.startswith(sheet.words[0])
    for part in ("50 of the 100 weights", "1 of 4 pixels are not", "dense 4,000", "50%: 90.0%"):
        assert part in sheet.description


def test_pixels_of_the_same_shade_are_one_path_with_their_numbers():
    found = [hint for hint in pruned(0.5).hints if "weights left" in hint]
    assert found == ["1 to 2 of 4 weights left", "4 to 4 of 4 weights left"]
    assert sum("weights left" in hint for hint in pruned(0).hints) == 1


def bars(sheet: Sheet) -> dict[str, float]:
    """The lengths of the bars of bytes."""
    return {b["hint"]: float(b["width"]) for b in sheet.boxes if b["hint"].endswith(" bytes")}


def test_bars_are_as_long_as_there_are_bytes_on_one_scale_for_all_sparsities():
    whole, half, tenth = (list(bars(pruned(sparsity)).values()) for sparsity in (0, 0.5, 0.9))
    assert whole == [pytest.approx(half[0]), pytest.approx(2 * half[1], abs=0.1)]
    assert whole[1] == pytest.approx(2 * whole[0], abs=0.1)
    assert tenth[0] == whole[0]


def test_every_accuracy_has_a_point_and_the_chosen_ones_a_ring():
    lines = {"these scores": SPARSITIES.accuracies, "random weights": SPARSITIES.random}
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


def test_what_the_study_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"sparsities are 0, 0\.5, 0\.9; got 0\.7"):
        sparsity_picture(SPARSITIES, 0.7)


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
