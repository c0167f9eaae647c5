"""A measured forward pass or step shows its parts in their order, each where it ran."""

import time

import pytest
import torch
from torch import nn

from mpcourse.data_parallel.anatomy import forward_timeline, split_step_timeline
from mpcourse.devices.devices import get_devices


@pytest.mark.parametrize(("rows", "replicas"), [(1, 1), (5, 3), (6, 3)])
def test_each_verb_is_one_event_and_the_replicas_lie_between(rows, replicas):
    timeline = forward_timeline(nn.Linear(4, 2), torch.ones(rows, 4), get_devices(3))
    at = {(event.device_index, event.action): event for event in timeline.events}
    on_devices = {(index + 1, f"replica {index}") for index in range(replicas)}
    assert set(at) == {(0, "scatter"), (0, "replicate"), (0, "gather")} | on_devices
    assert (len(timeline.events), timeline.num_devices) == (3 + replicas, 4)
    assert at[0, "scatter"].end <= at[0, "replicate"].start
    for replica in on_devices:
        assert at[0, "replicate"].end <= at[replica].start
        assert at[replica].end <= at[0, "gather"].start


def test_replicas_run_at_the_same_time():
    class Slow(nn.Module):
        def forward(self, rows):
            time.sleep(0.05)
            return rows

    timeline = forward_timeline(Slow(), torch.ones(2, 1), get_devices(2))
    at = {event.action: event for event in timeline.events}
    assert at["replica 0"].start < at["replica 1"].end
    assert at["replica 1"].start < at["replica 0"].end


class Halves(nn.Module):
    """A model in two halves, as the ResNets of the pages."""

    def __init__(self) -> None:
        super().__init__()
        self.devices = get_devices(2)
        self.one, self.two = (nn.Linear(4, 4).to(d.device) for d in self.devices)

    def stages(self):
        return [nn.Sequential(self.one), nn.Sequential(self.two)]

    def forward(self, rows):
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
    model.two = nn.Linear(5, 4)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        split_step_timeline(model, torch.ones(3, 4), torch.ones(3, 4), nn.MSELoss())
    assert not any(half._forward_hooks or half._forward_pre_hooks for half in model.children())
