"""Which copies go on behind the host's back, and what of a GPU is left as it was."""

from types import SimpleNamespace

import pytest
import torch
from pretend_cuda import pretend_cuda
from torch import nn

from mpcourse.data_parallel import anatomy, scatter_gather
from mpcourse.data_parallel.replicas import _Copy
from mpcourse.devices import jobs, timing
from mpcourse.devices.devices import as_devices
from mpcourse.splitting import block_times


@pytest.fixture
def cuda(monkeypatch):
    """Two GPUs; the host's clock shows the time of what it has waited for, and no other."""
    cuda = pretend_cuda(monkeypatch, gpus=2)
    clock = SimpleNamespace(perf_counter=lambda: cuda.host.free_at)
    monkeypatch.setattr(timing, "time", clock)
    return cuda


@pytest.mark.parametrize(("place", "goes_on"), [("cuda:1", True), ("cpu", False)])
def test_only_copies_to_gpus_go_on_behind_the_host_s_back(monkeypatch, place, goes_on):
    asked, place = [], torch.device(place)

    class Chunk:
        device, dim = torch.device("cuda", 0), torch.ones(1).dim

        def to(self, place, *, non_blocking=False, copy=False):
            asked.append((place, non_blocking))
            return torch.ones(1)

    monkeypatch.setattr(scatter_gather, "_chunks", lambda *_: [Chunk()])
    target = SimpleNamespace(device=place)
    scatter_gather._scatter(torch.ones(1), [target], 0, set())
    _Copy.forward(SimpleNamespace(), Chunk(), place)
    assert asked == [(place, goes_on)] * 2
    scatter_gather._cat([Chunk()], target, 0, "outputs[{}]")
    assert asked[2:] == [(place, False)]


def test_measuring_blocks_leaves_the_gpu_s_generator_alone(cuda, monkeypatch):
    forked, fork = [], torch.random.fork_rng
    monkeypatch.setattr(torch.random, "fork_rng", lambda gpus: forked.append(gpus) or fork([]))
    batch = cuda.kernel("inputs", gpu=1), None
    assert block_times._measure([], batch, None) == []
    assert forked == [[torch.device("cuda", 1)]]


def test_a_trial_is_timed_from_an_idle_device_to_an_idle_one(cuda, monkeypatch):
    [device] = as_devices(["cuda:1"])
    monkeypatch.setattr(
        jobs, "_multiply", lambda matrix, count: cuda.kernel("job", gpu=1, seconds=count / 100)
    )
    assert device.run(jobs._count, device, None, 1.0) == 100


def test_the_clock_of_a_backward_is_read_when_the_devices_are_idle(cuda):
    devices = as_devices(["cuda:0", "cuda:1"])

    class Half(nn.Module):
        """One second on its GPU."""

        def __init__(self, index):
            super().__init__()
            self.index = index

        def forward(self, value):
            return cuda.kernel("half", gpu=self.index, seconds=1.0)

    halves = [nn.Sequential(Half(0)), nn.Sequential(Half(1))]

    class Model:
        """Its backward takes five seconds on the first GPU."""

        def __init__(self):
            self.devices, self.stages = devices, lambda: halves

        def __call__(self, images):
            return devices[1].run(halves[1], devices[0].run(halves[0], images))

    loss = SimpleNamespace(backward=lambda: cuda.kernel("backward", gpu=0, seconds=5.0))
    labels = SimpleNamespace(to=lambda place: None)
    timeline = anatomy._split_step(Model(), None, labels, lambda output, labels: loss)
    lengths = [event.end - event.start for event in sorted(timeline.events)]
    assert lengths == pytest.approx([1.0, 1.0, 5.0])
