"""A measured step shows its parts in their order, each where it ran."""

import pytest
import torch
from torch import nn

from mpcourse.data_parallel.anatomy import split_step_timeline
from mpcourse.devices.devices import get_devices


class Halves(nn.Module):
    """A model in two halves, as the ResNets of the pages."""

    def __init__(self) -> None:
        super().__init__()
        self.devices = get_devices(2)
        self.one, self.two = (nn.Linear(4, 4).to(d.device) for d in self.devices)

    def stages(self):
        return [nn.Sequential(self.one), nn.Sequential(self.two)]

    def forward(self, rows):
        rows = rows.to(self.devices[0].device)
        pieces = [self.devices[0].run(self.one, piece) for piece in rows.split(2)]
        return torch.cat([self.devices[1].run(self.two, piece) for piece in pieces])


def test_a_split_step_is_forwards_by_piece_and_one_backward_of_the_caller():
    model = Halves()
    timeline = split_step_timeline(model, torch.ones(6, 4), torch.ones(6, 4), nn.MSELoss())
    found = [(event.device_index, str(event.action)) for event in timeline.events]
    assert sorted(found) == sorted(
        [(d, f"{d}F{n}") for d in (0, 1) for n in range(3)] + [(2, "backward()")]
    )
    last = timeline.events[-1]
    assert last.device_index == 2
    assert all(event.end <= last.start for event in timeline.events[:-1])
    assert timeline.num_devices == 3
    assert model.one.weight.grad is not None


def test_a_split_model_is_left_as_it_was_even_if_it_fails():
    model = Halves()
    model.two = nn.Linear(5, 4, device=model.devices[1].device)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        split_step_timeline(model, torch.ones(3, 4), torch.ones(3, 4), nn.MSELoss())
    assert not any(half._forward_hooks or half._forward_pre_hooks for half in model.children())
