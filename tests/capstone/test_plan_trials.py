"""Plans run as they say: pruned copies, the uncut net's answers, all steps in turns."""

import copy
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from mpcourse.capstone import trials as plan_trials
from mpcourse.capstone.plans import Plan
from mpcourse.capstone.trials import (
    Digits,
    Task,
    measure_plans,
    pipeline_of,
    run_plan,
    same_answer,
    train_pipeline,
    uncut,
)
from mpcourse.devices.devices import get_devices
from mpcourse.training.in_memory import LOSS
from mpcourse.training.nets import deep_conv_net

KEEP = {"block2": 0.25, "block3": 0.25}
ALL = dict.fromkeys([f"block{number}" for number in range(1, 9)], 0.25)


@pytest.fixture(scope="module")
def task():
    """A few images of two kinds that are easy to tell apart, and a small net."""
    torch.manual_seed(0)
    devices = get_devices(2)
    labels = torch.arange(32) % 2
    images = torch.randn(32, 1, 28, 28) * 0.1 + labels[:, None, None, None].float()
    images, labels = (tensor.to(devices[0].device) for tensor in (images, labels))
    data = SimpleNamespace(all_train=[images, labels], shuffled=[(images, labels)] * 6)
    data.accuracy = lambda model: (model(images).argmax(1).cpu() == labels.cpu()).float().mean()
    return Task(deep_conv_net(), data, devices, 2**20, 0.5, batch_size=32)


def test_a_plans_pipeline_holds_a_pruned_copy_cut_where_it_says(task):
    before = copy.deepcopy(task.net.state_dict())
    pipeline = pipeline_of(Plan(3, "gpipe", 4, KEEP), task.net, task.devices)
    assert [len(stage) for stage in pipeline.stages] == [3, 6]
    whole = uncut(pipeline)
    assert [name for name, _ in whole.named_children()] == [n for n, _ in task.net.named_children()]
    assert (len(whole.block2.conv.weight), len(whole.block4.conv.weight)) == (8, 32)
    pipeline.step(*task.data.all_train, LOSS)
    torch.optim.SGD(pipeline.parameters(), lr=1.0).step()
    for name, tensor in task.net.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_training_goes_through_the_pipeline_and_learns(task):
    pipeline = pipeline_of(Plan(4, keep=KEEP), task.net, task.devices)
    before = pipeline.step(*task.data.all_train, LOSS)
    train_pipeline(pipeline, task.data, 6)
    assert pipeline.step(*task.data.all_train, LOSS) < 0.7 * before


@pytest.mark.parametrize(
    ("schedule", "again"), [("naive", False), ("gpipe", False), ("1f1b", False), ("1f1b", True)]
)
def test_a_cut_net_has_the_uncut_ones_loss_and_gradients(task, monkeypatch, schedule, again):
    pipeline = pipeline_of(Plan(5, schedule, 4, KEEP, again), task.net, task.devices)
    assert pipeline.recompute == [again] * 2
    monkeypatch.setattr(plan_trials, "Pipeline", made := mock.Mock(wraps=plan_trials.Pipeline))
    before = [parameter.detach().clone() for parameter in pipeline.parameters()]
    assert same_answer(pipeline, task.data)
    for parameter, old in zip(pipeline.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    assert made.call_args.kwargs["recompute"] == [again] * 2  # what is compared is what runs


def test_a_cut_that_changes_the_answer_is_noticed(task, monkeypatch):
    pipeline = pipeline_of(Plan(5), task.net, task.devices)

    def lossy(stages, *args, **kwargs):
        return real([stages[0], nn.Sequential(*stages[1], nn.Threshold(0.0, 0.0))], *args, **kwargs)

    real = plan_trials.Pipeline
    monkeypatch.setattr(plan_trials, "Pipeline", lossy)
    assert not same_answer(pipeline, task.data)


def test_a_run_says_accuracy_and_equality_and_draws_nothing_from_the_page(task):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    run = run_plan(Plan(4, keep=ALL), task)
    assert torch.equal(torch.get_rng_state(), state)
    assert run.same_answer
    assert 0 <= run.accuracy <= 1
    with pytest.raises(ValueError, match="cut is a whole number"):
        run_plan(Plan(0), task)


def test_digits_are_judged_on_held_out_images_and_the_test_digits_are_counted():
    data = Digits(torch.device("cpu"))
    assert (len(data.all_train[0]), len(data.test[0][0])) == (3000, 1000)
    assert len(data.shuffled.dataset) == 3000
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    before = data.accuracy(model)
    assert data.shown == 0
    assert data.test_accuracy(model) != before  # of 1,000 other images
    assert data.shown == 1


def test_plans_are_measured_together_by_name(task):
    times = measure_plans({"a": Plan(4), "b": Plan(4, "naive", 4, ALL)}, task, repeats=2)
    assert list(times) == ["a", "b"]
    assert all(timing.repeats == 2 and timing.median_s > 0 for timing in times.values())
    with pytest.raises(ValueError, match="schedule is one of"):
        measure_plans({"a": Plan(4, "fast")}, task)
