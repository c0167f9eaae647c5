"""Stages are timed alone, steps at every size; where nothing interferes, prediction meets both."""

import time

import pytest
import torch
from torch import Tensor, nn

from mpcourse.devices.devices import get_devices
from mpcourse.pipeline.prediction import (
    SplitWork,
    compare,
    measure_stages,
    measure_step,
    measure_sweep,
    measure_unsplit,
    predict_step,
    split_work,
)
from mpcourse.splitting.resnet import resnet_blocks, thin_resnet50


class Nap(torch.autograd.Function):
    """Sleeps in both directions: a stage whose times are known, on however busy a machine."""

    @staticmethod
    def forward(ctx, rows: Tensor, fixed: float, each: float) -> Tensor:
        ctx.seconds = 2 * (fixed + each * len(rows))
        time.sleep(fixed + each * len(rows))
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        time.sleep(ctx.seconds)
        return gradient, None, None


class Napping(nn.Module):
    def __init__(self, fixed: float, each: float) -> None:
        super().__init__()
        self.times = fixed, each
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, rows: Tensor) -> Tensor:
        return Nap.apply(rows * self.scale, *self.times)


def napping_work() -> SplitWork:
    stages = [nn.Sequential(Napping(0.004, 0.002)), nn.Sequential(Napping(0.008, 0.003))]
    return SplitWork(stages, torch.ones(12, 1), torch.zeros(12, 1), [1, 2, 3, 4, 6, 12])


def test_lines_come_near_what_the_stages_really_take():
    lines = measure_stages(napping_work(), get_devices(2), nn.MSELoss())
    assert len(lines.forward) == len(lines.backward) == 2
    for row, factor in ((lines.forward, 1), (lines.backward, 2)):
        assert row[0].per_sample_s == pytest.approx(factor * 0.002, rel=0.5)
        assert row[1].per_sample_s == pytest.approx(factor * 0.003, rel=0.5)
        assert row[1].fixed_s > row[0].fixed_s > 0


def test_a_prediction_from_three_sizes_meets_the_sweep_over_six():
    work, devices, loss_fn = napping_work(), get_devices(2), nn.MSELoss()
    lines = measure_stages(work, devices, loss_fn)
    predicted = {size: predict_step(lines, 12, size).makespan for size in work.sizes}
    sweep = measure_sweep(work, devices, loss_fn)
    assert list(sweep.pipeline) == list(sweep.alone) == work.sizes
    found = compare(predicted, sweep.seconds("pipeline"))
    assert found.median_error < 0.25
    assert found.steps_apart <= 1
    alone, pipeline = sweep.seconds("alone"), sweep.seconds("pipeline")
    assert alone[1] > alone[12]  # every micro-batch costs
    assert pipeline[3] < alone[3]  # two devices at work


def test_one_size_is_measured_alone():
    timing = measure_step(napping_work(), get_devices(2), nn.MSELoss(), 6)
    assert timing.repeats == 3
    assert timing.median_s >= 3 * (0.008 + 0.003 * 6)


def test_the_model_in_one_piece_does_the_same_work():
    work = napping_work()
    timing = measure_unsplit(work, nn.MSELoss())
    assert timing.repeats == 3
    assert timing.median_s >= 3 * (0.012 + 0.005 * 12)
    gradient = work.stages[0][0].scale.grad  # four times: once to warm up
    assert gradient.item() == pytest.approx(8.0)


def test_the_work_is_a_thin_resnet_cut_behind_layer2():
    work = split_work(["cpu", "cpu"])
    assert all(len(work.images) % size == 0 for size in work.sizes)
    assert len(work.sizes) >= 6
    assert max(work.sizes) == len(work.images) == len(work.labels)
    front, back = work.stages
    assert [name for name, _ in front.named_children()][-1] == "layer2_3"
    assert next(name for name, _ in back.named_children()) == "layer3_0"
    with torch.no_grad():
        features = front.eval()(work.images[:2])
        assert features.shape == (2, 256, 12, 12)
        assert back.eval()(features).shape == (2, 10)


def test_a_thin_resnet_of_full_width_is_a_resnet50():
    torchvision = pytest.importorskip("torchvision")
    theirs = resnet_blocks(torchvision.models.resnet50(num_classes=7))
    ours = thin_resnet50(64, num_classes=7)
    shapes = [{k: v.shape for k, v in net.state_dict().items()} for net in (ours, theirs)]
    assert shapes[0] == shapes[1]
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), theirs.eval()(images))
