"""Work on GPUs and on shares of one: who waits for whom, by the stand-in for torch.cuda."""

import gc
import sys
import threading
import time
import types
import weakref
from types import SimpleNamespace

import pytest
from pretend_cuda import pretend_cuda

from mpcourse.devices import streams, timing
from mpcourse.devices.devices import as_devices, get_devices, synchronize
from mpcourse.devices.workers import collect
from mpcourse.splitting.resnet import ModelParallelResNet50

with_own_multiprocessors = streams._streams_with_own_multiprocessors  # the stand-in refuses them
ONE, SHARES, TWO = ["cuda:0"], ["cuda:0", "cuda:0"], ["cuda:0", "cuda:1"]
ELSEWHERE = ["cuda:1", "cuda:1"]  # the caller's current GPU is the other one
PLACES = pytest.mark.parametrize(
    "places",
    [ONE, SHARES, TWO, ELSEWHERE],
    ids=["GPU", "shares", "two GPUs", "shares of the second"],
)


@pytest.fixture
def cuda(monkeypatch):
    return pretend_cuda(monkeypatch, gpus=2)


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


# waiting and clocks


@pytest.mark.parametrize("devices", [ONE, SHARES, None])
def test_a_time_begins_with_idle_devices_and_ends_with_idle_ones(cuda, monkeypatch, devices):
    """The stand-in's host knows the time of what it has waited for, and no other."""
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: cuda.host.free_at))
    [place, *_] = as_devices(devices or ONE)

    def queue(seconds):
        place.submit(cuda.kernel, "work", gpu=0, seconds=seconds).exception(10)

    cuda.kernel("before", gpu=0, seconds=5.0)
    assert timing._time_once(lambda: queue(3.0), devices) == 3.0
    cuda.kernel("between", gpu=0, seconds=1.0)
    assert timing._clocked(place, lambda: queue(2.0)) == (9.0, 11.0)


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


# green contexts


def test_green_contexts_are_made_where_the_gpu_has_its_own_context(cuda, monkeypatch):
    made = []

    class Partition:
        sm_count, coscheduled_sm_count = 132, 8

        def split(self, *, num_sms):
            return num_sms, None

    class Context:
        def __init__(self, *, sm_partition):
            assert cuda.asked[-1][:2] == ("synchronize", 1)
            self.made = cuda.current_device(), sm_partition
            made.append(weakref.ref(self))

        def Stream(self):
            return self.made

    module = types.ModuleType("torch.cuda.green_contexts")
    module.GreenContext = Context
    module.SMPartition = SimpleNamespace(from_device=lambda gpu: Partition())
    monkeypatch.setitem(sys.modules, "torch.cuda.green_contexts", module)
    assert with_own_multiprocessors(1, 2) == [(1, 64), (1, 64)]
    gc.collect()
    assert None not in [context() for context in made]  # a stream lives as long as its context


# the split ResNet


def test_what_one_half_makes_is_kept_while_the_other_half_reads_it(cuda):
    halves = SimpleNamespace(devices=as_devices(SHARES))
    submit = ModelParallelResNet50._submit
    features = submit(halves, 0, lambda _: cuda.kernel("front", gpu=0), None).result()
    result = submit(halves, 1, lambda features: cuda.kernel("back", features) and None, features)
    del features
    result.wait(None)
    gc.collect()
    assert cuda.races == []
