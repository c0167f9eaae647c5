"""A measured forward pass or step shows its parts in their order, each where it ran."""

import time

import pytest
import torch
from torch import nn

from mpcourse.data_parallel.anatomy import forward_timeline, split_step_timeline
from mpcourse.devices.devices import get_devices


@pytest.mark.parametrize(("rows", "replicas"), [(1, 1), (2, 2), (5, 3), (6, 3)])
def test_each_verb_is_one_event(rows, replicas):
    timeline = forward_timeline(nn.Linear(4, 2), torch.ones(rows, 4), get_devices(3))
    found = {(event.device_index, event.action) for event in timeline.events}
    on_devices = {(index + 1, f"replica {index}") for index in range(replicas)}
    assert found == {(0, "scatter"), (0, "replicate"), (0, "gather")} | on_devices
    assert len(timeline.events) == 3 + replicas
    assert timeline.num_devices == 4


def test_verbs_follow_one_another_and_replicas_lie_between():
    timeline = forward_timeline(nn.Linear(4, 2), torch.ones(6, 4), get_devices(2))
    at = {event.action: event for event in timeline.events}
    assert at["scatter"].end <= at["replicate"].start
    for replica in ("replica 0", "replica 1"):
        assert at["replicate"].end <= at[replica].start
        assert at[replica].end <= at["gather"].start


def test_replicas_run_at_the_same_time():
    class Slow(nn.Module):
        def forward(self, rows):
            time.sleep(0.05)
            return rows

    timeline = forward_timeline(Slow(), torch.ones(2, 1), get_devices(2), repeats=1)
    at = {event.action: event for event in timeline.events}
    assert at["replica 0"].start < at["replica 1"].end
    assert at["replica 1"].start < at["replica 0"].end


@pytest.mark.parametrize("repeats", [0, -1])
def test_no_repeat_is_refused(repeats):
    with pytest.raises(ValueError, match=f"repeats is a whole number from 1; got {repeats}"):
        forward_timeline(nn.Linear(1, 1), torch.ones(2, 1), get_devices(2), repeats=repeats)


class Halves(nn.Module):
    """A model in two halves, as the ResNets of the pages."""

    def __init__(self) -> None:
        super().__init__()
        self.devices = get_devices(2)
        self.one, self.two = (nn.Linear(4, 4).to(d.device) for d in self.devices)

    def front(self, rows):
        return self.one(rows.to(self.devices[0].device))

    def back(self, rows):
        if rows.shape[0] > 2:
            raise ValueError("two rows at most")
        return self.two(rows.to(self.devices[1].device))

    def forward(self, rows):
        pieces = [self.devices[0].run(self.front, piece) for piece in rows.split(2)]
        return torch.cat([self.devices[1].run(self.back, piece) for piece in pieces])


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
    split_step_timeline(model, torch.ones(2, 4), torch.ones(2, 4), nn.MSELoss(), repeats=1)
    assert not {"front", "back"} & set(vars(model))
    model.forward = lambda rows: model.back(rows)
    with pytest.raises(ValueError, match="two rows at most"):
        split_step_timeline(model, torch.ones(3, 4), torch.ones(3, 4), nn.MSELoss())
    assert not {"front", "back"} & set(vars(model))


def test_no_repeat_of_a_split_step_is_refused():
    with pytest.raises(ValueError, match="repeats is a whole number from 1; got 0"):
        split_step_timeline(Halves(), torch.ones(2, 4), torch.ones(2, 4), nn.MSELoss(), repeats=0)
