"""Blocks are timed in whole steps, on copies: the model is as it was."""

import time

import pytest
import torch
from torch import nn

from mpcourse.devices import get_devices
from mpcourse.schedules import Costs
from mpcourse.splitting.block_times import measure_blocks


class Wait(nn.Module):
    """A block that waits in its forward and in its backward for known times."""

    def __init__(self, forward_ms: int, backward_ms: int) -> None:
        super().__init__()
        self.times = forward_ms, backward_ms
        self.weight = nn.Parameter(torch.ones(1))
        self.seen = calls = []  # the copies that are measured count here, too
        self.count = lambda: calls.append(1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.count()
        nap(self.times[0])
        output = rows * self.weight
        output.register_hook(lambda gradient: nap(self.times[1]))
        return output


def nap(milliseconds: int) -> None:
    time.sleep(milliseconds / 1e3)


def measured(blocks: list[nn.Module]) -> Costs:
    rows = torch.ones(2, 3)
    return measure_blocks(blocks, rows, rows, nn.MSELoss(), get_devices(1)[0])


def test_a_first_slow_step_warms_up_and_five_steps_count():
    class SlowAtFirst(Wait):
        num_calls = 0

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.times = (0 if self.num_calls else 300, 0)
            self.num_calls += 1
            return super().forward(rows)

    block = SlowAtFirst(0, 0)
    assert measured([block]).forward[0] < 0.3
    assert len(block.seen) == 1 + 5


def test_each_block_gets_its_own_forward_and_backward_time():
    costs = measured([Wait(30, 5), Wait(5, 60), Wait(5, 5)])
    assert max(costs.forward) == costs.forward[0] >= 0.03
    assert max(costs.backward) == costs.backward[1] >= 0.06
    assert costs.forward[1] >= 0.005
    assert costs.backward[2] >= 0.005


class Branch(nn.Module):
    """A block with two outputs, one of which has no gradient."""

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rows, rows.argmax(dim=1)


class Join(nn.Module):
    def forward(self, both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return both[0] + both[1][:, None]


def awkward() -> nn.Sequential:
    """In-place operations behind a cut, several outputs, draws, statistics."""
    linear = nn.Linear(4, 4)
    norm, dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)
    return nn.Sequential(
        linear, nn.ReLU(inplace=True), norm, nn.Hardtanh(inplace=True), dropout, Branch(), Join()
    )


def test_measuring_leaves_no_trace():
    model, rows = awkward(), torch.randn(8, 4)
    model(rows.clone()).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    kept = [parameter.grad for parameter in model.parameters()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    draws = torch.get_rng_state()
    before = rows.clone()
    costs = measure_blocks(model, rows, rows, nn.MSELoss(), get_devices(1)[0])
    assert len(costs.forward) == 7
    assert torch.equal(rows, before)
    assert torch.equal(torch.get_rng_state(), draws)
    for parameter, same, gradient in zip(model.parameters(), kept, gradients, strict=True):
        assert parameter.grad is same
        assert torch.equal(parameter.grad, gradient)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_layers_without_gradients_take_no_backward():
    model = nn.Sequential(nn.Flatten(), nn.ReLU())
    costs = measure_blocks(
        model, torch.randn(2, 3), None, lambda out, _: out.sum(), get_devices(1)[0]
    )
    assert max(costs.backward) < 1e-3


def test_it_measures_whatever_the_caller_has_switched_off():
    with torch.no_grad():
        costs = measured([Wait(0, 20)])
    assert costs.backward[0] >= 0.02


def test_no_blocks_are_refused():
    with pytest.raises(ValueError, match="blocks is empty"):
        measured([])
