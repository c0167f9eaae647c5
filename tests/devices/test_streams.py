"""How work gets onto a device: thread counts on the CPU, streams on a GPU."""

import copy
import gc
import sys
import threading
import time
import types
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pretend_cuda import pretend_cuda
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from mpcourse.devices import streams
from mpcourse.devices.devices import get_devices
from mpcourse.devices.streams import CpuCore, memory_of, share_streams

LONG = 200_000_000  # cycles of a GPU: about a tenth of a second


def in_new_thread(fn):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result()


@pytest.fixture
def three_threads():
    """The caller computes with three threads, and so do threads that start later."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_two_starts_at_once_keep_both_callers_counts_and_the_default():
    lane = CpuCore()
    entered = threading.Event()

    def start():
        with lane.starting():
            in_new_thread(lane.set_up)
            entered.set()
            time.sleep(0.1)  # where the other caller would find a default of 1
        return torch.get_num_threads()

    def start_meanwhile():
        entered.wait(30)
        return start()

    with ThreadPoolExecutor(2) as callers:
        starts = [callers.submit(fn) for fn in (start, start_meanwhile)]
        assert [caller.result() for caller in starts] == [3, 3]
    assert in_new_thread(torch.get_num_threads) == 3


def test_a_torch_that_ignores_the_count_is_noticed(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(RuntimeError, match="ignores set_num_threads"):
        in_new_thread(CpuCore().set_up)


def test_a_changed_count_of_the_caller_is_noticed(monkeypatch):
    counts = iter([2, 2, 1, 1])
    monkeypatch.setattr(torch, "get_num_threads", lambda: next(counts))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    with pytest.raises(RuntimeError, match="torch uses 1 threads, not 2"), CpuCore().starting():
        pass


class PretendPartition:
    """As many multiprocessors as an H100 has, to be had in eights."""

    sm_count, coscheduled_sm_count = 132, 8

    @classmethod
    def from_device(cls, gpu):
        return cls()

    def split(self, *, num_sms):
        return tuple(num_sms), None


@pytest.fixture
def contexts(monkeypatch):
    """The green contexts that live; a stream of one is its GPU and how many multiprocessors."""
    own, living = streams._streams_with_own_multiprocessors, weakref.WeakSet()
    cuda = pretend_cuda(monkeypatch, gpus=2)

    class PretendContext:
        def __init__(self, *, sm_partition):
            self.stream = cuda.current_device(), sm_partition
            assert cuda.asked[-1][:2] == ("synchronize", self.stream[0])
            living.add(self)

        def Stream(self):
            return self.stream

    module = types.ModuleType("torch.cuda.green_contexts")
    module.GreenContext, module.SMPartition = PretendContext, PretendPartition
    monkeypatch.setitem(sys.modules, "torch.cuda.green_contexts", module)
    monkeypatch.setattr(streams, "_streams_with_own_multiprocessors", own)
    monkeypatch.setattr(streams, "_green_contexts", [])
    return living


@pytest.mark.parametrize(("shares", "each"), [(2, 64), (3, 40), (4, 32), (16, 8)])
def test_shares_get_equal_numbers_of_multiprocessors(contexts, shares, each):
    assert share_streams(1, shares) == ([(1, each)] * shares, True)
    gc.collect()
    assert len(contexts) == shares  # a stream lives as long as its context


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize("error", [None, AttributeError, TypeError, RuntimeError])
def test_too_many_shares_and_those_where_green_contexts_fail_get_plain_streams(monkeypatch, error):
    def refuse(self, *, num_sms):
        raise error("not here")

    count = 2 if error else 17
    if error:
        monkeypatch.setattr(PretendPartition, "split", refuse)
    found, own = share_streams(1, count)
    assert [stream.device.index for stream in found] == [1] * count
    assert not own


@pytest.mark.usefixtures("contexts")
def test_shares_that_ask_at_once_get_the_same_streams(monkeypatch):
    def slow(gpu, shares):
        time.sleep(0.05)
        return [object() for _ in range(shares)]

    monkeypatch.setattr(streams, "_streams_with_own_multiprocessors", slow)
    together = threading.Barrier(2)

    def ask():
        together.wait(30)
        return share_streams(0, 2)

    with ThreadPoolExecutor(2) as workers:
        first, second = workers.submit(ask), workers.submit(ask)
        assert first.result() is second.result()


# with GPUs: the work sees what its caller had written, and the other way round


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2])
def test_work_waits_for_kernels_that_its_caller_had_queued(n):
    for device in get_devices(n):
        x = torch.zeros(1000, device=device.device)
        torch.cuda._sleep(LONG)
        x.fill_(1)
        assert device.run(lambda t: t.sum().item(), x) == 1000


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2])
def test_the_caller_waits_for_kernels_that_the_work_has_queued(n):
    def write_late(x):
        torch.cuda._sleep(LONG)
        return x.fill_(2)

    for device in get_devices(n):
        x = torch.zeros(1000, device=device.device)
        assert device.run(write_late, x).sum().item() == 2000


@pytest.mark.gpu
def test_the_memory_of_an_argument_is_not_reused_while_a_share_works_on_it():
    def add_late(x):
        torch.cuda._sleep(LONG)
        return x + 1

    device = get_devices(2)[0]
    result = device.submit(add_late, torch.ones(1 << 20, device=device.device))
    other = torch.full((1 << 20,), 5.0, device=device.device)  # would take the freed memory
    assert result.result().sum().item() == 2 << 20
    assert other.sum().item() == 5 << 20


@pytest.mark.gpu
def test_a_gradient_from_another_stream_than_the_weight_s_is_no_warning():
    device = get_devices(2)[0]
    net, rows = nn.Linear(3, 2).to(device.device), torch.randn(4, 3, device=device.device)
    on_the_share = device.run(net, rows)  # keeps the place where the gradients are added up
    with warnings.catch_warnings(action="error"):
        net(rows).sum().backward()
        on_the_share.sum().backward()
    torch.cuda.synchronize()
    torch.testing.assert_close(net.bias.grad, torch.full((2,), 8.0, device=device.device))


@pytest.mark.gpu
def test_a_whole_gpu_works_on_its_callers_stream():
    [device] = get_devices(1)
    mine = torch.cuda.Stream(device.device)
    with torch.cuda.stream(mine):
        assert device.run(torch.cuda.current_stream) == mine


@pytest.mark.two_gpus
def test_the_second_gpu_waits_for_what_the_caller_queued_on_it():
    second = get_devices(2)[1]
    x = torch.zeros(1000, device=second.device)
    with torch.cuda.device(second.device):
        torch.cuda._sleep(LONG)
    x.fill_(1)
    assert second.run(lambda t: t.sum().item(), x) == 1000


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda t: t, 1),
        (Tensor.to_sparse, 2),
        (Tensor.to_sparse_csr, 3),
        (Tensor.to_sparse_csc, 3),
        (lambda t: t.to_sparse_bsr((2, 2)), 3),
        (lambda t: t.to_sparse_bsc((2, 2)), 3),
        (lambda t: TwoTensor(t, t.clone()), 2),
    ],
)
def test_the_memory_of_a_tensor_is_that_of_its_parts(make, parts):
    found = memory_of(make(torch.eye(4)).requires_grad_())
    assert len(found) == parts
    assert all(part.layout == torch.strided and not part.requires_grad for part in found)


@pytest.mark.gpu
@pytest.mark.parametrize("form", [Tensor.to_sparse_csr, torch.sparse.to_sparse_semi_structured])
def test_a_share_works_with_sparse_weights(form):
    layer = nn.Linear(128, 128, bias=False, device="cuda", dtype=torch.float16)
    fours = torch.tensor([1, 0, 0, 1], device="cuda", dtype=torch.float16).repeat(128, 32)
    layer.weight = nn.Parameter(layer.weight * fours)
    rows = torch.randn(64, 128, device="cuda", dtype=torch.float16)
    sparse = copy.deepcopy(layer)
    sparse.weight = nn.Parameter(form(layer.weight.detach()), requires_grad=False)
    with torch.no_grad():
        expected = layer(rows)
    for device in get_devices(2):
        found = device.run(torch.no_grad()(sparse), rows)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
