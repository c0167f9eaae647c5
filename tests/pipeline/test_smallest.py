"""The smallest pipeline trains as the uncut model does."""

import copy

import pytest
import torch
from torch import nn

from mpcourse.devices.devices import as_devices
from mpcourse.pipeline.smallest import SmallestPipeline
from mpcourse.schedules.named import make_schedule


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b"])
@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_it_does_what_the_uncut_model_does(schedule, num_stages):
    stages = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(num_stages)]
    uncut = copy.deepcopy(nn.Sequential(*stages))
    rows, targets, loss_fn = torch.randn(6, 4), torch.randn(6, 4), nn.MSELoss()
    devices = as_devices(["cpu"] * num_stages)
    plan = make_schedule(schedule, num_stages, num_stages, 3)
    loss = SmallestPipeline(stages, devices, plan).step(rows, targets, loss_fn)
    expected = loss_fn(uncut(rows), targets)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    found = [weight.grad for stage in stages for weight in stage.parameters()]
    torch.testing.assert_close(found, [weight.grad for weight in uncut.parameters()])
