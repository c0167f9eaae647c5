"""Work on GPUs and on shares of one: who waits for whom, by the stand-in for torch.cuda."""

import gc
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from pretend_cuda import pretend_cuda
from torch import nn

from mpcourse.data_parallel import parallel_apply, replicate
from mpcourse.devices import streams, timing
from mpcourse.devices.devices import as_devices, get_devices, synchronize
from mpcourse.devices.timing import clock_for
from mpcourse.devices.workers import collect
from mpcourse.pipeline.engine import link_actions, run_schedule
from mpcourse.schedules.actions import Action
from mpcourse.schedules.named import make_schedule
from mpcourse.schedules.timeline import Timeline
from mpcourse.splitting.resnet import ModelParallelResNet50

ONE, SHARES, TWO = ["cuda:0"], ["cuda:0", "cuda:0"], ["cuda:0", "cuda:1"]
ELSEWHERE = ["cuda:1", "cuda:1"]  # the caller's current GPU is the other one
PLACES = pytest.mark.parametrize(
    "places",
    [ONE, SHARES, TWO, ELSEWHERE],
    ids=["GPU", "shares", "two GPUs", "shares of the second"],
)
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


@PLACES
def test_work_waits_for_its_caller_and_its_caller_for_the_work(cuda, places):
    for device in as_devices(places):
        mine = cuda.kernel("before", gpu=device.device.index)
        cuda.kernel("after", device.run(lambda mine: cuda.kernel("work", mine), mine))
    gc.collect()
    assert cuda.races == []


def test_the_memory_of_an_argument_is_kept_while_a_share_works_on_it(cuda):
    device = as_devices(SHARES)[0]
    release = threading.Event()

    def read(mine):
        release.wait(10)
        cuda.kernel("work", mine)

    result = device.submit(read, cuda.kernel("before", gpu=0))
    release.set()
    result.wait(None)
    gc.collect()  # nobody has it any more, and the caller's stream has not waited
    assert cuda.races == []


class Saves(nn.Module):
    """Reads its weight and its buffer, and keeps them for a backward."""

    def __init__(self, weight, buffer) -> None:
        super().__init__()
        self._parameters["weight"] = weight  # not trained: the stand-in has no autograd
        self.register_buffer("buffer", buffer)
        self.saved = {}

    def forward(self, replica):
        self.saved[replica] = self.weight, self.buffer


def call_in_place(replicas, devices):
    collect([devices[index].submit(each, index) for index, each in enumerate(replicas)])


def apply_in_place(replicas, devices):
    parallel_apply(replicas, range(len(replicas)), devices=devices)


@pytest.mark.parametrize("call", [call_in_place, apply_in_place])
def test_the_weights_of_a_replica_are_kept_while_its_backward_reads_them(cuda, call):
    devices = as_devices(SHARES)
    module = Saves(cuda.kernel("weight", gpu=0), cuda.kernel("buffer", gpu=0))
    call(replicate(nn.Sequential(module), devices), devices)
    with cuda.stream(devices[1].worker.context.stream):  # autograd runs it where the forward ran
        cuda.kernel("backward", *module.saved.pop(1))
    gc.collect()  # nobody has them any more, and the caller's stream has not waited
    assert cuda.races == []


def test_the_memory_of_a_value_is_kept_while_its_taker_works_on_it(cuda):
    value = as_devices(SHARES)[0].run(cuda.kernel, "work", gpu=0)
    cuda.kernel("after", value)
    del value
    gc.collect()
    assert cuda.races == []


@pytest.mark.parametrize("how", ["result", "collect"])
def test_the_caller_waits_for_the_kernels_of_work_that_failed(cuda, how):
    first, second = as_devices(SHARES)

    def fail(name):
        cuda.kernel(name, gpu=0)
        raise ValueError(name)

    handed = [first.submit(fail, "first"), second.submit(fail, "second")]
    with pytest.raises(ValueError, match="first"):
        collect(handed) if how == "collect" else handed[0].result()
    behind = {name for name, moment, _ in cuda.kernels if cuda.defaults[0].is_behind(moment)}
    assert behind == ({"first", "second"} if how == "collect" else {"first"})


def test_the_caller_waits_for_the_kernels_of_work_that_was_stopped(cuda):
    first, second = as_devices(SHARES)

    def go_on(name):
        cuda.kernel(name, gpu=0)
        while True:
            time.sleep(0.01)

    with pytest.raises(TimeoutError):
        collect([first.submit(go_on, "first"), second.submit(go_on, "second")], timeout=0.3)
    assert [cuda.defaults[0].is_behind(moment) for _, moment, _ in cuda.kernels] == [True, True]


def test_a_gpu_that_refuses_everything_does_not_hide_the_error_of_the_work(cuda, monkeypatch):
    [device] = as_devices(SHARES)[:1]
    device.run(int)

    def refuse(self):
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(streams.GpuShare, "wait_stream", refuse)
    with pytest.raises(ZeroDivisionError):
        device.run(lambda: 1 // 0)


def test_a_worker_s_current_device_is_its_gpu(cuda):
    assert [device.run(cuda.current_device) for device in as_devices(TWO)] == [0, 1]
    assert [device.run(cuda.current_device) for device in as_devices(["cuda:1"] * 2)] == [1, 1]
    assert ("set_device", 1) in [asked[:2] for asked in cuda.asked]  # outside of work, too


def test_a_whole_gpu_works_on_its_caller_s_stream_and_shares_on_streams_of_their_own(cuda):
    mine = cuda.new_stream(0)
    with cuda.stream(mine):
        assert as_devices(ONE)[0].run(cuda.current_stream) is mine
        streams = [device.run(cuda.current_stream) for device in get_devices(4)]
    assert len({mine, *streams, *cuda.defaults}) == 7
    assert [stream.device.index for stream in streams] == [0, 0, 1, 1]


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


@pytest.mark.parametrize("names", [["cuda:0", "cpu"], ["cpu", "cuda:0"]])
def test_a_stage_that_hands_on_what_is_on_another_gpu_is_refused(cuda, names):
    devices = as_devices(names)
    rows = link_actions(make_schedule("gpipe", 2, 2, 2), 2)
    with pytest.raises(
        ValueError, match=f"a stage on {devices[0].device} hands on a tensor on cuda:1"
    ) as caught:
        run_schedule(rows, devices, lambda *_: cuda.kernel("out", gpu=1), gradients=True)
    assert f'end the stage with .to("{devices[0].device}")' in str(caught.value)


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
    found = streams.copy_after(streams.record_event(value, GPU[1]), value, torch.device("cpu"))
    assert found["n"] == 3
    assert not found["x"].is_cuda
    assert cuda.asked[0][:2] == ("synchronize", "event")
    assert cuda.races == []


@pytest.mark.parametrize("devices", [ONE, SHARES, None])
def test_a_time_begins_with_idle_devices_and_ends_with_idle_ones(cuda, monkeypatch, devices):
    """The stand-in's host knows the time of what it has waited for, and no other."""
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: cuda.host.free_at))
    [place, *_] = as_devices(devices or ONE)

    def queue(seconds):
        place.submit(cuda.kernel, "work", gpu=0, seconds=seconds).exception(10)

    cuda.kernel("before", gpu=0, seconds=5.0)
    assert timing.clocked(lambda: queue(3.0), devices)[1:] == (5.0, 8.0)
    cuda.kernel("between", gpu=0, seconds=1.0)
    assert timing.clocked(lambda: queue(2.0), [place])[1:] == (9.0, 11.0)


def test_a_share_waits_for_its_own_stream_alone(cuda):
    first, second = as_devices(SHARES)
    second.submit(cuda.kernel, "other", gpu=0, seconds=9.0).exception(10)
    first.submit(cuda.kernel, "own", gpu=0, seconds=1.0).exception(10)
    synchronize([first])
    assert cuda.host.free_at == 1.0
    synchronize(as_devices(ONE))
    assert cuda.host.free_at == 9.0


def test_waiting_for_all_waits_for_what_was_queued_without_a_worker(cuda):
    cuda.kernel("plain", gpu=0, seconds=4.0)
    cuda.kernel("plain", gpu=1, seconds=5.0)
    synchronize()
    assert cuda.host.free_at == 5.0


def test_a_gpu_s_clock_tells_when_kernels_ran_and_not_when_they_were_queued(cuda):
    _, clocks = run(cuda, KINDS_OF_DEVICES["two GPUs"], "gpipe", count=2)
    events = [event for index, clock in enumerate(clocks) for event in clock.events(index)]
    timeline = Timeline.from_clock(events, 2)
    forwards = sorted(e.end - e.start for e in timeline.events)
    assert forwards == pytest.approx([1.0] * 8, abs=1e-6)


def test_a_clock_marks_the_stream_of_its_own_gpu_wherever_it_is_asked(cuda):
    clock = clock_for(GPU[1])
    clock.zero()  # the caller's current device is GPU 0
    start = clock.now()
    cuda.kernel("forward", gpu=1, seconds=2.0)
    clock.note("F", start)
    [event] = clock.events(0)
    assert event.end - event.start == pytest.approx(2.0)


def test_a_clock_begins_when_its_gpu_is_idle(cuda):
    cuda.kernel("before", gpu=1, seconds=5.0)
    clock = clock_for(GPU[1])
    clock.zero()
    assert ("synchronize", 1) in [asked[:2] for asked in cuda.asked]
    assert clock._zero.at == 5.0


def test_what_one_half_makes_is_kept_while_the_other_half_reads_it(cuda):
    halves = SimpleNamespace(devices=as_devices(SHARES))
    submit = ModelParallelResNet50._submit
    features = submit(halves, 0, lambda _: cuda.kernel("front", gpu=0), None).result()
    result = submit(halves, 1, lambda features: cuda.kernel("back", features) and None, features)
    del features
    result.wait(None)
    gc.collect()
    assert cuda.races == []
