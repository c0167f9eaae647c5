"""Run plans for a pruned pipeline: fine-tune, compare with the uncut net, measure."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpcourse.capstone.plans import (
    BLOCK_PRICE,
    NUM_DEVICES,
    Forecast,
    Plan,
    forecast,
    pruned,
    validate_plan,
)
from mpcourse.devices.devices import Device
from mpcourse.devices.timing import Timing, measure_together
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.training.in_memory import LOSS, Data
from mpcourse.training.loop import evaluate

RATE = 2e-3  # of Adam, at the beginning
HELD_OUT = 1000  # of the training images


class Digits(Data):
    """As `Data`, but accuracy is that on held-out training images: plans are chosen by it.

    The test digits are left for the end, and `shown` says how many nets they have judged.
    """

    def __init__(self, place: torch.device, batch_size: int = 128) -> None:
        super().__init__(place, batch_size)
        last = [tensor[-HELD_OUT:] for tensor in self.all_train]
        self.all_train = [tensor[:-HELD_OUT] for tensor in self.all_train]
        self.shuffled = DataLoader(TensorDataset(*self.all_train), batch_size, shuffle=True)
        self.test, self._kept_back = [last], self.test
        self.shown = 0

    def test_accuracy(self, model: nn.Module) -> float:
        """On the 1,000 test digits, which should be asked once."""
        self.shown += 1
        return evaluate(model, self._kept_back, LOSS).accuracy


@dataclass(frozen=True)
class Task:
    """What plans are made for."""

    net: nn.Sequential  # trained, on the host; plans prune copies of it
    data: Digits  # a mini-batch is one of its loader's
    devices: Sequence[Device]  # two
    most_bytes: int  # that a device may hold
    least_accuracy: float  # of the pruned net after its epochs, 0 to 1
    fixed: tuple[str, ...] = ()  # blocks that stay whole
    batch_size: int = 128
    epochs: int = 2  # that a pruned net is trained for

    def forecast(self, plan: Plan, price: float = BLOCK_PRICE) -> Forecast:
        """What is known of a plan before it runs; one that cannot run is refused."""
        return forecast(plan, self.net, self.data.all_train[0][:1], self.batch_size, price)


@dataclass(frozen=True)
class PlanRun:
    """What a plan's run has shown."""

    accuracy: float  # on the held-out images, after the pruned net's epochs
    same_answer: bool  # whether the cut net had the uncut one's loss and gradients, to rounding
    net: nn.Module  # as training left it


def pipeline_of(plan: Plan, net: nn.Sequential, devices: Sequence[Device]) -> Pipeline:
    """The pipeline of a valid plan, over a pruned copy of the net, on two devices."""
    slim = pruned(net, plan.keep)
    stages = [slim[: plan.cut], slim[plan.cut :]]
    count, again = plan.num_microbatches, plan.recompute
    return Pipeline(stages, devices, plan.schedule, num_microbatches=count, recompute=again)


def uncut(pipeline: Pipeline) -> nn.Sequential:
    """A copy of a pipeline's net in one piece, on the host, its blocks under their names."""
    blocks = {name: block for stage in pipeline.stages for name, block in stage.named_children()}
    whole = nn.Sequential()
    for name, block in blocks.items():
        whole.add_module(name, copy.deepcopy(block).cpu())
    return whole


def train_pipeline(pipeline: Pipeline, data: Data, epochs: int = 1) -> None:
    """Train through the pipeline with Adam, at a rate that falls to a tenth."""
    optimizer = torch.optim.Adam(pipeline.parameters(), lr=RATE)
    steps = epochs * len(data.shuffled)
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    pipeline.train()
    for _ in range(epochs):
        for images, labels in data.shuffled:
            optimizer.zero_grad()
            pipeline.step(images, labels, LOSS)
            # in a worker: more threads than one only wait for one another in a net so small
            pipeline.devices[0].run(optimizer.step)
            slower.step()


def same_answer(pipeline: Pipeline, data: Data) -> bool:
    """Whether a pipeline has the loss and the gradients of its net in one piece, to rounding.

    Both are copies in double precision; 13 samples make micro-batches of 4, and one of 1.
    """
    whole = uncut(pipeline).double()
    parts, front = copy.deepcopy(whole), len(pipeline.stages[0])
    stages = [parts[:front], parts[front:]]
    again, schedule = pipeline.recompute, pipeline.schedule
    cut = Pipeline(stages, pipeline.devices, schedule, microbatch_size=4, recompute=again)
    images, labels = (tensor[:13] for tensor in data.all_train)
    losses = [cut.step(images.double(), labels, LOSS).cpu()]
    losses.append(LOSS(whole(images.cpu().double()), labels.cpu()))
    losses[1].backward()
    gradients = zip(parts.parameters(), whole.parameters(), strict=True)
    pairs = [losses, *([ours.grad.cpu(), its.grad] for ours, its in gradients)]
    return all(torch.allclose(ours, its, rtol=1e-7, atol=1e-9) for ours, its in pairs)


def run_plan(plan: Plan, task: Task) -> PlanRun:
    """Prune, train through the plan's own pipeline, and look at the result.

    Takes some seconds: the time of its epochs is the bound.

    Raises:
        TypeError, ValueError: As `validate_plan`, before anything runs.
    """
    validate_plan(plan, task.net, task.batch_size)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the same order of images for every plan
        pipeline = pipeline_of(plan, task.net, task.devices)
        train_pipeline(pipeline, task.data, task.epochs)
    same = same_answer(pipeline, task.data)
    return PlanRun(task.data.accuracy(pipeline), same, uncut(pipeline).to(task.devices[0].device))


def measure_plans(plans: Mapping[str, Plan], task: Task, *, repeats: int = 9) -> dict[str, Timing]:
    """Measure the steps of several plans, in turns, by name: compare them as ratios."""
    images, labels = (tensor[: task.batch_size] for tensor in task.data.all_train)
    steps = {}
    for name, plan in plans.items():
        validate_plan(plan, task.net, task.batch_size)
        pipeline = pipeline_of(plan, task.net, task.devices)
        steps[name] = lambda p=pipeline: p.step(images, labels, LOSS)
    return measure_together(steps, task.devices[:NUM_DEVICES], repeats=repeats)
