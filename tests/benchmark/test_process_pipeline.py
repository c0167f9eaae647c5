"""torch's engine in processes gives our engine's loss and gradients, and its failures are named."""

import multiprocessing
import os
import time

import pytest
import torch
from torch import nn

from mpcourse.benchmark.process_pipeline import ProcessPipeline, Work
from mpcourse.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.slow


def small_work() -> Work:
    torch.manual_seed(5)
    stages = [nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)]
    inputs, targets = torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 3
    return Work([stage.double() for stage in stages], inputs, targets, nn.CrossEntropyLoss())


class Failing(nn.Module):
    """Its first forward is torch's look at the shapes; a later one fails in its own way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, rows):
        self.calls += 1
        if self.calls > 3 and self.how == "raises":
            raise KeyError("no such layer")
        if self.calls > 3 and self.how == "dies":
            os._exit(7)
        return rows * self.scale


def failing_work(how: str) -> Work:
    work = small_work()
    return work._replace(stages=[work.stages[0], nn.Sequential(Failing(how), work.stages[1])])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_torch_s_engine_agrees_with_ours(schedule):
    work = small_work()
    ours = Pipeline(work.stages, schedule=schedule, num_microbatches=4)
    loss = ours.step(work.inputs, work.targets, work.loss_fn)
    with ProcessPipeline(small_work, (), 2, schedule=schedule, num_microbatches=4) as theirs:
        assert theirs.threads == [1, 1]
        assert theirs.step(2) == pytest.approx(loss.item(), rel=1e-12)
        gradients = theirs.gradients()
    for stage, found in zip(work.stages, gradients, strict=True):
        torch.testing.assert_close(found, [p.grad for p in stage.parameters()])
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("how", "words"), [("raises", "KeyError"), ("dies", "exit code 7")])
def test_a_rank_that_fails_is_named_and_no_process_is_left(how, words):
    start = time.perf_counter()
    pipeline = ProcessPipeline(failing_work, (how,), 2, schedule="gpipe", num_microbatches=4)
    with pytest.raises(RuntimeError, match="rank 1") as caught, pipeline:
        pipeline.step(5)
    assert words in str(caught.value)
    assert multiprocessing.active_children() == []
    assert time.perf_counter() - start < 60
