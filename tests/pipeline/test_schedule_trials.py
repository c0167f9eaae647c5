"""A trial of a schedule predicts, measures, and gives the uncut model's loss and gradients."""

import copy

import pytest
import torch
from torch import nn

from mpcourse.devices.devices import get_devices
from mpcourse.pipeline.prediction import try_schedule
from mpcourse.schedules.named import SCHEDULES

LOSS = nn.MSELoss()


def make_model(layers: int = 4) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(3, 3) for _ in range(layers)]).double()


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_trial_equals_the_uncut_model_and_leaves_it_alone(name: str) -> None:
    model, batch = make_model(), torch.randn(2, 7, 3, dtype=torch.double).unbind()
    uncut = copy.deepcopy(model)
    trial = try_schedule(name, model, get_devices(2), batch, LOSS, num_microbatches=3, repeats=2)
    loss = LOSS(uncut(batch[0]), batch[1])
    loss.backward()
    torch.testing.assert_close(trial.loss, loss.detach(), rtol=1e-12, atol=1e-12)
    expected = [parameter.grad for parameter in uncut.parameters()]
    torch.testing.assert_close(trial.gradients, expected, rtol=1e-12, atol=1e-12)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model[0].weight, uncut[0].weight)


@pytest.mark.parametrize(("name", "size"), [("1f1b", 1), ("interleaved", 0.5), ("zb-v", 0.5)])
def test_prediction_and_measurement_have_the_same_actions_in_the_same_order(
    name: str, size: float
) -> None:
    batch = torch.randn(2, 8, 3, dtype=torch.double).unbind()
    trial = try_schedule(name, make_model(), get_devices(2), batch, LOSS, num_microbatches=4)
    for device in range(2):
        orders = [
            [event.action for event in run.events if event.device_index == device]
            for run in (trial.predicted, trial.measured)
        ]
        assert orders[0] == orders[1]
    assert trial.predicted.peak_activations == trial.measured.peak_activations
    assert trial.activation_size == size


def test_too_few_layers_are_refused() -> None:
    batch = torch.randn(2, 4, 3, dtype=torch.double).unbind()
    with pytest.raises(ValueError, match="2 layers make 1 to 2 stages; got 4"):
        try_schedule("zb-v", make_model(2), get_devices(2), batch, LOSS, num_microbatches=2)
