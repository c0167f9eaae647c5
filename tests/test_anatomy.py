"""A measured forward pass shows the four verbs in their order, each where it ran."""

import time

import pytest
import torch
from torch import nn

from mpcourse.anatomy import forward_timeline
from mpcourse.devices import get_devices


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
    with pytest.raises(ValueError, match=f"repeats is 1 or more; got {repeats}"):
        forward_timeline(nn.Linear(1, 1), torch.ones(2, 1), get_devices(2), repeats=repeats)
