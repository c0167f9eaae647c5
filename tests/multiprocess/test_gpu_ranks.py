"""Ranks on GPUs: which device and backend, and clocks that wait; by the stand-in for torch.cuda."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from pretend_cuda import pretend_cuda
from torch import distributed, nn

from mpcourse.multiprocess import overlapped, pipeline_work, speed, zero
from mpcourse.multiprocess.ddp import train_step
from mpcourse.multiprocess.launch import read_results
from mpcourse.multiprocess.rank import Rank
from mpcourse.transformer import in_processes, on_a_mesh

GPU = torch.device("cuda", 1)


@pytest.fixture
def cuda(monkeypatch):
    """Two GPUs; the host's clock shows the time of what it has waited for, and no other."""
    cuda = pretend_cuda(monkeypatch, gpus=2)
    monkeypatch.setattr(time, "perf_counter", lambda: cuda.host.free_at)
    monkeypatch.setattr(distributed, "barrier", lambda: None)
    return cuda


@pytest.fixture
def rank(cuda):
    rank = Rank()
    rank.device, rank.backend = GPU, "nccl"
    return rank


class Loss:
    """Takes two seconds to go back."""

    def __init__(self, backward):
        self.square = self.mean = lambda: self
        self.backward = backward


# which device


def test_a_rank_s_gpu_is_current_before_it_meets_the_others(cuda, rank, monkeypatch):
    met = []
    monkeypatch.setattr(
        distributed,
        "init_process_group",
        lambda backend, timeout: met.append((backend, cuda.current_device())),
    )
    rank.connect()
    assert met == [("nccl", 1)]


def test_the_caller_of_the_compared_ways_works_on_the_rank_s_gpu(cuda, rank, monkeypatch):
    class Enough(Exception):
        """The group for waiting is asked for."""

    def new_group(backend):
        raise Enough(backend)

    monkeypatch.setattr(speed, "_batch", lambda rank, size: (None, None))
    monkeypatch.setattr(distributed, "new_group", new_group)
    with pytest.raises(Enough, match="gloo"):  # the host waits there; nccl would wait on the GPU
        speed.run(rank, SimpleNamespace(batch_size=2))
    [(_, _, thread)] = [asked for asked in cuda.asked if asked[:2] == ("set_device", 1)]
    assert thread != threading.current_thread().name


def test_the_mesh_is_of_the_ranks_devices(rank, monkeypatch):
    class Enough(Exception):
        """The mesh is asked for."""

    def mesh(kind, *_, **__):
        raise Enough(kind)

    monkeypatch.setattr(on_a_mesh, "init_device_mesh", mesh)
    rank.world_size = 8
    with pytest.raises(Enough, match="cuda"):
        on_a_mesh.run(rank, SimpleNamespace(shape=(2, 2, 2)))


def test_results_of_gpus_are_read_where_there_are_none(tmp_path, monkeypatch):
    with monkeypatch.context() as there:
        there.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
        torch.save({"gradient": torch.ones(2)}, tmp_path / "result-0.pt")
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(tmp_path / "result-0.pt", weights_only=True)
    [result] = read_results(tmp_path, [0])
    assert torch.equal(result["gradient"], torch.ones(2))


# clocks


def test_a_rank_reads_the_clock_when_its_device_is_done(cuda, rank):
    cuda.kernel("other", gpu=0, seconds=9.0)
    cuda.kernel("own", gpu=1, seconds=2.0)
    assert rank.seconds() == 2.0


def test_the_optimizer_s_part_of_a_step_begins_when_the_gradients_are_there(cuda, rank):
    cuda.kernel("before", gpu=1, seconds=5.0)
    loss = Loss(lambda: cuda.kernel("backward", gpu=1, seconds=2.0))
    optimizer = SimpleNamespace(
        zero_grad=lambda: None, step=lambda: cuda.kernel("step", gpu=1, seconds=1.0)
    )
    model = (lambda rows: loss, optimizer, lambda: None)
    assert zero._step(model, None, rank, 0) == (3.0, 1.0)


def test_steps_of_a_block_are_timed_until_the_gpu_is_done(cuda, rank):
    steps = {"ours": lambda: cuda.kernel("ours", gpu=1, seconds=2.0)}
    assert in_processes._timed(steps, rank, SimpleNamespace(repeats=2)) == {"ours": [2.0, 2.0]}


def noted_step(monkeypatch) -> tuple[nn.Module, SimpleNamespace, list[str]]:
    """A net, an optimizer for it, and a list: when weights are stepped, when a number is asked."""
    happened, item = [], torch.Tensor.item
    monkeypatch.setattr(
        torch.Tensor, "item", lambda tensor: happened.append("item") or item(tensor)
    )
    net = nn.Linear(3, 2)
    optimizer = SimpleNamespace(zero_grad=net.zero_grad, step=lambda: happened.append("step"))
    return net, optimizer, happened


def test_a_step_in_parts_asks_for_its_loss_when_the_weights_are_stepped(monkeypatch):
    net, optimizer, happened = noted_step(monkeypatch)
    parts = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
    loss = speed._step_in_parts(net, optimizer, parts)
    assert happened == ["step", "item"]
    rows, targets = (torch.cat(each) for each in zip(*parts, strict=True))
    assert loss == pytest.approx(speed.LOSS(net(rows), targets).tolist())


class Late(ThreadPoolExecutor):
    """Begins what it is handed only when that is asked for: after the step."""

    def submit(self, fn, *args):
        return SimpleNamespace(result=lambda: super(Late, self).submit(fn, *args).result())


def test_what_waits_for_the_sums_works_on_the_rank_s_gpu(cuda):
    traced = overlapped._Traced(nn.Linear(2, 2), 8, GPU)
    assert traced._waiting.submit(cuda.current_device).result() == 1
    traced.close()


def test_an_all_reduce_beside_the_backward_is_timed_on_its_own_stream(cuda):
    sums = cuda.new_stream(1)

    class Request:
        """As nccl's: the current stream waits for the sum, and the host does not."""

        def __init__(self):
            sums.wait_stream(cuda.current_stream(1))
            with cuda.stream(sums):
                cuda.kernel("sum", gpu=1, seconds=3.0)
            self.ready = sums.record_event()

        def wait(self):
            cuda.current_stream().wait_event(self.ready)

    requests = []

    def backward():
        for _ in range(2):
            cuda.kernel("backward", gpu=1, seconds=2.0)
            requests.append(Request())
            traced._on_sent(requests[-1])

    traced = overlapped._Traced.__new__(overlapped._Traced)
    traced.net = lambda batch: Loss(backward)
    traced.net.zero_grad = lambda: None
    traced._device, traced._marks, traced._waiting = GPU, [], Late(1)
    traced._stream = torch.cuda.Stream(GPU)
    traced._buckets = SimpleNamespace(
        begin=lambda: None, wait=lambda: [request.wait() for request in requests]
    )
    cuda.kernel("before", gpu=1, seconds=7.0)
    with cuda.on_device(1):
        seconds = traced.step(None)
        rows = traced.rows()
    traced._waiting.shutdown()
    assert seconds == 8.0
    assert rows == [
        (0, "B0", 0.0, 2.0),
        (1, "A0", 2.0, 5.0),
        (0, "B1", 2.0, 4.0),
        (2, "A1", 4.0, 8.0),
    ]


def test_a_plain_step_asks_for_its_loss_when_the_weights_are_stepped(monkeypatch):
    net, optimizer, happened = noted_step(monkeypatch)
    train_step(net, optimizer, torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    assert happened == ["step", "item"]


def test_inside_reproducible_cudnn_chooses_no_algorithm():
    flags = torch.backends.cudnn
    before = flags.enabled, flags.deterministic, flags.benchmark
    with pipeline_work.reproducible():
        assert (flags.deterministic, flags.benchmark, flags.allow_tf32) == (True, False, False)
        assert flags.enabled
    assert (flags.enabled, flags.deterministic, flags.benchmark) == before
