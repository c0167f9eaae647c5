"""Both engines give one loss and one gradient; times are those of the slowest rank."""

import time
from types import SimpleNamespace

import pytest
import torch
from pretend_cuda import pretend_cuda
from processes import printed_by
from torch import distributed

from mpcourse.benchmark.sharding import train_step
from mpcourse.benchmark.two_ranks import clock, in_turns, paired, run_program, slowest

GPU = torch.device("cuda", 1)

BOTH = """
import torch
from torch import distributed, nn
from mpcourse.benchmark.torch_pipeline import Work, on_one_thread, torch_step
from mpcourse.pipeline import Pipeline
distributed.init_process_group("gloo")
rank = distributed.get_rank()
def work():
    torch.manual_seed(5)
    stages = [nn.Sequential(nn.Linear(6, 5), nn.Tanh()).double(), nn.Linear(5, 3).double()]
    rows = torch.randn(8, 6, dtype=torch.float64)
    return Work(stages, rows, torch.arange(8) % 3, nn.CrossEntropyLoss())
for schedule in ("gpipe", "1f1b"):
    ours, theirs, losses = work(), work(), []
    wanted = Pipeline(ours.stages, schedule=schedule, num_microbatches=4).step(*ours[1:])
    step, threads = torch_step(theirs, schedule, 4), []
    on_one_thread(lambda: (losses.append(step()), threads.append(torch.get_num_threads())))()
    assert threads == [1]
    if rank == 1:
        torch.testing.assert_close(losses[0].detach(), wanted)
    pairs = zip(theirs.stages[rank].parameters(), ours.stages[rank].parameters(), strict=True)
    for found, parameter in pairs:
        torch.testing.assert_close(found.grad, parameter.grad)
    print(schedule)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_torch_s_engine_agrees_with_ours_and_has_one_thread_too():
    assert printed_by(BOTH, 2) == 2 * ["gpipe", "1f1b"]


def test_ratios_are_taken_turn_by_turn_over_the_slowest_rank():
    first = {"ours": [1.0, 9.0, 3.0], "torch's": [2.0, 3.0, 3.0]}
    second = {"ours": [1.0, 1.0, 6.0], "torch's": [4.0, 1.0, 2.0]}
    times = slowest([first, second])
    assert times == {"ours": [1.0, 9.0, 6.0], "torch's": [4.0, 3.0, 3.0]}
    assert paired(times, "torch's") == {"ours": 2.0, "torch's": 1.0}


@pytest.mark.parametrize(("gpus", "ranks", "wanted"), [(2, 2, "cuda:1"), (1, 2, "cpu")])
def test_ranks_are_on_gpus_only_where_each_has_its_own(gpus, ranks, wanted, monkeypatch):
    happened = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: happened.append(str(device)))
    monkeypatch.setattr(distributed, "init_process_group", happened.append)
    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(distributed, name, lambda: None)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv("LOCAL_RANK", "1")
    run_program(lambda device, *numbers: happened.append((str(device), numbers)), ["3", "4"])
    first = [wanted, "nccl"] if wanted != "cpu" else ["gloo"]
    assert happened == [*first, (wanted, (3, 4))]


@pytest.fixture
def cuda(monkeypatch):
    """Two GPUs; the host's clock shows the time of what it has waited for, and no other."""
    cuda = pretend_cuda(monkeypatch, gpus=2)
    monkeypatch.setattr(time, "perf_counter", lambda: cuda.host.free_at)
    monkeypatch.setattr(distributed, "barrier", lambda: None)
    return cuda


def test_the_clock_is_read_when_the_own_device_is_done(cuda):
    cuda.kernel("other", gpu=0, seconds=9.0)
    cuda.kernel("own", gpu=1, seconds=2.0)
    assert clock(GPU) == 2.0
    steps = {"ours": lambda: cuda.kernel("ours", gpu=1, seconds=2.0)}
    assert in_turns(steps, 2, GPU) == {"ours": [2.0, 2.0]}


def test_the_optimizer_s_part_of_a_step_begins_when_the_gradients_are_there(cuda):
    class Loss:
        """Takes two seconds to go back."""

        square = mean = lambda self: self

        def backward(self):
            cuda.kernel("backward", gpu=1, seconds=2.0)

    cuda.kernel("before", gpu=1, seconds=5.0)
    optimizer = SimpleNamespace(
        zero_grad=lambda: None, step=lambda: cuda.kernel("step", gpu=1, seconds=1.0)
    )
    model = (lambda rows: Loss(), optimizer, lambda: None)
    assert train_step(model, None, GPU) == (3.0, 1.0)
