"""Values between two workers: who waits for whom on a GPU, by the stand-in for torch.cuda."""

import gc

import pytest
import torch
from pretend_cuda import pretend_cuda

from mpcourse.devices import streams
from mpcourse.devices.devices import as_devices
from mpcourse.devices.timing import clock_for
from mpcourse.pipeline.engine import link_actions, run_schedule
from mpcourse.schedules.actions import Action
from mpcourse.schedules.named import make_schedule
from mpcourse.schedules.timeline import Timeline

GPU = [torch.device("cuda", index) for index in (0, 1)]
KINDS_OF_DEVICES = {
    "two shares": ["cuda:0", "cuda:0"],
    "two GPUs": ["cuda:0", "cuda:1"],
    "a GPU and a core": ["cuda:0", "cpu"],
    "a core and a GPU": ["cpu", "cuda:0"],
    "shares of two GPUs": ["cuda:0", "cuda:0", "cuda:1", "cuda:1"],
}


@pytest.fixture
def cuda(monkeypatch):
    return pretend_cuda(monkeypatch, gpus=2, copy_seconds=0.25)


def run(cuda, names, schedule="1f1b", count=4, seconds=1.0):
    """A schedule whose actions are kernels that read what they take in."""
    devices = as_devices(names)
    stages = len(devices)
    tasks = link_actions(make_schedule(schedule, stages, stages, count), stages)

    def do(action, value):
        place = devices[action.stage_index].device
        if place.type == "cpu":
            assert not getattr(value, "is_cuda", False), f"{action} got a value on a GPU"
            return cuda.on_host()
        inputs = [] if value is None else [value]
        return cuda.kernel(action, *inputs, seconds=seconds, gpu=place.index)

    clocks = run_schedule(tasks, devices, do, gradients=True)
    gc.collect()
    return devices, clocks


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("names", KINDS_OF_DEVICES.values(), ids=KINDS_OF_DEVICES)
def test_no_action_reads_what_may_not_be_written_and_no_memory_goes_too_early(
    cuda, names, schedule
):
    run(cuda, names, schedule)
    assert cuda.races == []
    assert (
        len([name for name, _, _ in cuda.kernels if isinstance(name, Action)])
        == sum(name != "cpu" for name in names) * 2 * 4
    )


def test_the_host_goes_on_while_what_it_has_is_copied_to_a_gpu(cuda):
    cuda.kernel("before", gpu=1, seconds=5.0)
    streams.copy_after(None, cuda.on_host(), torch.device("cuda", 1))
    assert cuda.host.free_at == 0.0


def test_a_stage_s_backward_runs_on_the_stream_of_its_forward(cuda):
    run(cuda, KINDS_OF_DEVICES["two shares"])
    streams = [
        {cuda.stream_of(Action(stage, kind, index)) for kind in "FB" for index in range(4)}
        for stage in (0, 1)
    ]
    assert [len(each) for each in streams] == [1, 1]
    assert streams[0] != streams[1]
    assert cuda.defaults[0] not in streams[0] | streams[1]


@pytest.mark.parametrize("names", ["two shares", "two GPUs"])
def test_what_the_caller_had_queued_is_over_before_a_step_and_the_step_before_its_next(cuda, names):
    weights = cuda.kernel("optimizer", gpu=0)
    run(cuda, KINDS_OF_DEVICES[names])
    first, last = Action(0, "F", 0), Action(0, "B", 3)
    assert cuda.stream_of(first).is_behind(weights.memory.written)
    moments = {name: moment for name, moment, _ in cuda.kernels}
    assert cuda.defaults[0].is_behind(moments[last])


def test_two_gpus_compute_at_the_same_time_though_copies_go_between_them(cuda):
    """A copy on the streams that compute would let each wait for the other's kernels."""
    run(cuda, KINDS_OF_DEVICES["two GPUs"], "gpipe", count=4)
    assert [cuda.runs(Action(0, "F", index)) for index in range(4)] == [
        (index, index + 1) for index in range(4)
    ]
    assert [cuda.runs(Action(1, "F", index)) for index in range(4)] == [
        (index + 1.25, index + 2.25) for index in range(4)
    ]


def test_what_leaves_a_gpu_for_the_cpu_is_waited_for(cuda):
    value = {"x": cuda.kernel("forward", seconds=3.0, gpu=1), "n": 3}
    found = streams.copy_after(streams.record_event(GPU[1]), value, torch.device("cpu"))
    assert found["n"] == 3
    assert not found["x"].is_cuda
    assert cuda.asked[0][:2] == ("synchronize", "event")
    assert cuda.races == []


def test_between_cpu_cores_a_value_is_handed_on_as_it_is(cuda):
    value, cpu = [torch.ones(2)], torch.device("cpu")
    assert streams.record_event(cpu) is None
    assert streams.copy_after(None, value, cpu) is value
    assert cuda.asked == []


# clocks


def test_a_gpu_s_clock_tells_when_kernels_ran_and_not_when_they_were_queued(cuda):
    _, clocks = run(cuda, KINDS_OF_DEVICES["two GPUs"], "gpipe", count=2)
    events = [event for index, clock in enumerate(clocks) for event in clock.events(index)]
    timeline = Timeline.from_clock(events, 2)
    forwards = sorted(e.end - e.start for e in timeline.events)
    assert forwards == pytest.approx([1.0] * 8, abs=1e-6)


def test_a_clock_marks_the_stream_of_its_own_gpu_wherever_it_is_asked(cuda):
    clock = clock_for(GPU[1])
    clock.zero()  # the caller's current device is GPU 0
    clock.start("F")
    cuda.kernel("forward", gpu=1, seconds=2.0)
    clock.end()
    [event] = clock.events(0)
    assert event.end - event.start == pytest.approx(2.0)


def test_a_clock_begins_when_its_gpu_is_idle(cuda):
    cuda.kernel("before", gpu=1, seconds=5.0)
    clock = clock_for(GPU[1])
    clock.zero()
    assert ("synchronize", 1) in [asked[:2] for asked in cuda.asked]
    assert clock._zero.at == 5.0
