"""The race of page `pipeline`: its work, clocks that leave no trace, and ratios in pairs."""

import pytest
import torch
from torch import nn

from mpcourse.devices.devices import as_devices, get_devices
from mpcourse.devices.timing import LIMIT, Timing
from mpcourse.pipeline.prediction import Line, StageLines, predict_step
from mpcourse.pipeline.race import (
    both_at_work,
    lines_table,
    noted_step,
    race_work,
    tutorial_step,
    verdict,
    without_fixed,
)
from mpcourse.schedules.timeline import Event, Timeline

LINES = StageLines((Line(1e-3, 2e-3), Line(0.0, 0.0)), (Line(2e-3, 4e-3),) * 2)


@pytest.mark.parametrize(
    ("limit", "side", "sizes"), [(None, 96, [4, 8, 16, 32, 64]), ("2", 32, [2, 4, 8, 16])]
)
def test_the_work_is_smaller_where_pages_are_tested(monkeypatch, limit, side, sizes):
    monkeypatch.delenv(LIMIT, raising=False)
    if limit:
        monkeypatch.setenv(LIMIT, limit)
    work = race_work(as_devices(["cpu", "cpu:1"]))
    assert work.sizes == sizes
    assert work.images.shape == (sizes[-1], 3, side, side)
    assert len(work.labels) == sizes[-1]
    assert work.stages[-1](work.stages[0](work.images[:2])).shape == (2, 10)
    assert sum(w.numel() for w in work.stages[0].parameters()) < (5e4 if limit else 5e5)


class Stage:
    """A stage that computes nothing."""

    place = torch.device("cpu")

    def forward(self, number, value):
        return value + number

    def backward(self, number):
        raise ValueError(f"no backward of {number}")


def test_a_noted_step_shows_what_each_stage_did_and_leaves_the_stages_as_they_were():
    stages = [Stage(), Stage()]
    seen = noted_step(stages, lambda: [stages[1].forward(3, 4), stages[0].forward(2, 1)])
    assert [(e.device_index, str(e.action)) for e in seen.events] == [(1, "1F3"), (0, "0F2")]
    with pytest.raises(ValueError, match="no backward of 5"):
        noted_step(stages, lambda: stages[0].backward(5))
    assert not any(map(vars, stages))


def test_a_tutorial_step_counts_the_threads_of_its_backward_and_leaves_no_hook():
    devices = get_devices(2)
    parts = [nn.Sequential(nn.Linear(4, 4)).to(device.device) for device in devices]

    def forward(rows):
        features = devices[0].run(parts[0], rows.to(devices[0].device))
        return devices[1].run(parts[1], features.to(devices[1].device))

    batch = torch.ones(6, 4), torch.ones(6, 4)
    step, threads = tutorial_step(forward, parts, devices, batch, nn.MSELoss())
    assert threads >= 1
    assert [str(event.action) for event in step.events] == ["0F0", "1F0", "backward()"]
    assert not any(w._backward_hooks for part in parts for w in part.parameters())


def test_the_share_of_a_step_at_which_both_work():
    events = [Event(0, "a", 0.0, 4.0), Event(1, "b", 3.0, 5.0), Event(2, "caller", 0.0, 10.0)]
    assert both_at_work(Timeline(tuple(events), 3)) == pytest.approx(0.1)


def test_lines_in_words_and_without_their_fixed_times():
    assert lines_table(LINES).splitlines()[0] == (
        "stage 0 forward :  1.00 ms +  2.000 ms per sample, measured here"
    )
    free = without_fixed(LINES)
    assert free.fixed_s == 0
    assert free.forward[0].per_sample_s == 2e-3
    assert predict_step(without_fixed(StageLines(*[(Line(1.0, 0.0),) * 2] * 2)), 8, 4).makespan > 0


@pytest.mark.parametrize(
    ("theirs", "says"),
    [((2.0, 3.0, 4.0), "pays"), ((0.5, 0.2, 0.9), "costs"), ((0.5, 2.0, 3.0), "cannot be told")],
)
def test_a_verdict_compares_round_by_round(theirs, says):
    def timing(times):
        return Timing(times, 0, "", "")

    found = verdict({4: timing((1.0, 1.0, 1.0)), "copies": timing(theirs)}, 4, "copies")
    assert found.says == says
    middle = sorted(theirs)[1]
    between = f"({min(theirs):.2f} to {max(theirs):.2f})"
    assert found.line == f"copies took {middle:.2f} x as long as your pipeline in size 4 {between}"
