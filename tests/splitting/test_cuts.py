"""Cuts are counted as they are, measured in real steps, and drawn as they were given."""

import math

import pytest
import torch
from matplotlib.figure import Figure
from torchvision.models import resnet18, resnet50

from mpcourse.figures import plot_cuts
from mpcourse.schedules.simulation import Costs
from mpcourse.splitting.cuts import cut_costs, shares_before
from mpcourse.splitting.resnet import BACK, FRONT, ModelParallelResNet50, resnet_blocks


def test_the_blocks_are_the_model_s_own_layers_and_compute_the_same():
    model = resnet18(num_classes=10).eval()
    blocks = resnet_blocks(model)
    assert {id(p) for p in blocks.parameters()} == {id(p) for p in model.parameters()}
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(blocks(images), model(images))


def test_the_cut_of_the_split_model_is_the_one_after_layer2():
    model = ModelParallelResNet50(num_classes=10)
    blocks = resnet_blocks(model)
    cut = list(dict(blocks.named_children())).index("layer2_3") + 1
    for stage, part in zip(model.stages(), (blocks[:cut], blocks[cut:]), strict=True):
        assert [id(p) for p in stage.parameters()] == [id(p) for p in part.parameters()]
    assert (FRONT[-1], BACK[0]) == ("layer2", "layer3")


COSTS = Costs(forward=[1, 2, 3, 4], backward=[2, 4, 8, 16])


def test_a_cut_adds_up_the_blocks_of_each_stage_and_none_is_empty():
    found = {cut: cut_costs(COSTS, cut) for cut in (1, 2, 3)}
    assert [costs.forward for costs in found.values()] == [[1, 9], [3, 7], [6, 4]]
    assert [costs.backward for costs in found.values()] == [[2, 28], [6, 24], [14, 16]]
    for cut in (0, 4, -1):
        words = f"4 blocks can be cut after 1 to 3 of them; got {cut}"
        with pytest.raises(ValueError, match=words):
            cut_costs(COSTS, cut)


def test_shares_are_what_lies_before_each_cut():
    shares = {(1, 1, 2): [0.25, 0.5], (0, 0, 3): [0, 0], (3, 0): [1], (5,): []}
    for costs, found in shares.items():
        assert shares_before(list(costs)) == found
    for costs in ([], [0, 0], [math.nan]):
        with pytest.raises(ValueError, match="shares need a sum above 0"):
            shares_before(costs)


def test_resnet50_s_named_blocks_send_half_as_much_after_each_later_layer():
    with torch.device("meta"):
        blocks = resnet_blocks(resnet50())
        names = [name for name, _ in blocks.named_children()]
        sample, sizes = torch.empty(1, 3, 64, 64), {}
        for name in names:
            sizes[name] = (sample := blocks.get_submodule(name)(sample)).nbytes
    counts = {"layer1": 3, "layer2": 4, "layer3": 6, "layer4": 3}
    layers = [f"{layer}_{i}" for layer, count in counts.items() for i in range(count)]
    assert names == ["stem", *layers, "head"]
    last = [sizes[name] for name in ("stem", "layer1_2", "layer2_3", "layer3_5", "layer4_2")]
    assert last == [1024 * size for size in (64, 256, 128, 64, 32)]


def test_shares_are_drawn_in_percent_and_bytes_in_kib_over_named_cuts():
    shares = {"parameters": [0.1, 0.5], "time": [0.4, 0.9]}
    axes = Figure().subplots(2)
    assert plot_cuts(["stem", "layer1_0"], shares, [2048, 1024], axes) is axes
    upper, lower = axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in upper.lines[:2]}
    assert drawn == {"parameters": [10, 50], "time": [40, 90]}
    assert [bar.get_height() for bar in lower.patches] == [2, 1]
    assert [tick.get_text() for tick in lower.get_xticklabels()] == ["stem", "layer1_0"]
    assert upper.get_title() == "times measured here; parameters and bytes counted"
    assert len({line.get_marker() for line in upper.lines[:2]}) == 2


@pytest.mark.parametrize(
    ("shares", "crossing", "message"),
    [
        ({"time": [0.5]}, [1, 2], "time has 1 values; there are 2 cuts"),
        ({"time": [0.5, 0.6]}, [1], "crossing has 1 values; there are 2 cuts"),
    ],
)
def test_what_does_not_fit_the_cuts_is_refused(shares, crossing, message):
    axes = Figure().subplots(2)
    with pytest.raises(ValueError, match=message):
        plot_cuts(["a", "b"], shares, crossing, axes)
    assert not axes[0].lines
    assert not axes[1].patches
