"""Both engines give one loss and one gradient; ranks are on GPUs where each has its own."""

import pytest
import torch
from processes import printed_by
from torch import distributed

from mpcourse.benchmark.two_ranks import run_program

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
