"""Plans run as they say: pruned copies, the uncut net's answers, all steps in turns."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mpcourse.capstone import trials as plan_trials
from mpcourse.capstone.plans import BLOCK_PRICE, Plan, block_work, counted_costs, simulate_plan
from mpcourse.capstone.trials import (
    Task,
    clock_blocks,
    clock_price,
    measure_plans,
    pipeline_of,
    run_plan,
    same_answer,
    simulate_costs,
    train_pipeline,
    uncut,
)
from mpcourse.devices.devices import get_devices
from mpcourse.schedules.simulation import Costs
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
    seen = []

    def watch(batches):
        for batch in batches:
            seen.append(len(batch[1]))
            yield batch

    before = pipeline.step(*task.data.all_train, LOSS)
    train_pipeline(pipeline, task.data, 6, watch=watch)
    assert seen == 36 * [32]
    assert pipeline.step(*task.data.all_train, LOSS) < 0.7 * before


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b"])
def test_a_cut_net_has_the_uncut_ones_loss_and_gradients(task, schedule):
    pipeline = pipeline_of(Plan(5, schedule, 4, KEEP), task.net, task.devices)
    before = [parameter.detach().clone() for parameter in pipeline.parameters()]
    assert same_answer(pipeline, task.data)
    for parameter, old in zip(pipeline.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None


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


def test_plans_are_measured_together_by_name(task):
    times = measure_plans({"a": Plan(4), "b": Plan(4, "naive", 4, ALL)}, task, repeats=2)
    assert list(times) == ["a", "b"]
    assert all(timing.repeats == 2 and timing.median_s > 0 for timing in times.values())
    with pytest.raises(ValueError, match="schedule is one of"):
        measure_plans({"a": Plan(4, "fast")}, task)


def test_the_blocks_of_every_plan_are_timed_and_a_plan_that_cannot_run_is_refused_first(task):
    plans = {"slim": Plan(6, "gpipe", 3, KEEP), "whole": Plan(4)}
    costs = clock_blocks(plans, task, repeats=1)
    assert list(costs) == ["slim", "whole"]
    for each in costs.values():
        assert len(each.forward) == len(each.backward) == len(task.net)
        assert all(0 < time < 60 for time in (*each.forward, *each.backward))
    with pytest.raises(ValueError, match="num_microbatches"):
        clock_blocks({"fine": Plan(4), "fast": Plan(6, "gpipe", 64)}, task)
    with pytest.raises(ValueError, match="repeats is 1 or more; got 0"):
        clock_blocks({"fine": Plan(4)}, task, repeats=0)


def test_blocks_are_timed_in_turns_and_one_slow_moment_moves_no_plan(task, monkeypatch):
    seen = []

    def measured(blocks, images, *args, **kwargs):
        seen.append(len(images))
        slow = 100.0 if len(seen) == 3 else 1.0  # the third measurement meets a busy machine
        return Costs([slow] * len(blocks), [2.0 * slow] * len(blocks))

    monkeypatch.setattr(plan_trials, "measure_blocks", measured)
    plans = {"a": Plan(4, "naive", 4), "b": Plan(5, "naive", 2)}
    costs = clock_blocks(plans, task, repeats=3)
    assert seen == [8, 16, 8, 16, 8, 16]
    assert costs["a"] == costs["b"] == Costs([1.0] * 9, [2.0] * 9)


def test_a_step_is_simulated_from_costs_with_the_plans_cut_schedule_and_count():
    costs = Costs([1.0] * 9, [2.0] * 9)
    assert simulate_costs(Plan(4, "naive", 4), costs).makespan == 4 * 9 * 3.0
    assert len(simulate_costs(Plan(6, "gpipe", 3), costs).events) == 12
    work = [1.0, 2.0, 3.0]
    wanted = simulate_plan(Plan(2, "1f1b", 4), work, 40)
    assert simulate_costs(Plan(2, "1f1b", 4), counted_costs(work, 10)).events == wanted.events


def a_device_that(monkeypatch, rate, price):
    """Blocks that take what is counted, at a rate, and a price of so many multiply-adds."""

    def measured(blocks, images, *args, **kwargs):
        costs = counted_costs(block_work(blocks, images[:1].cpu()), len(images), price)
        return Costs(*([time / rate for time in row] for row in (costs.forward, costs.backward)))

    monkeypatch.setattr(plan_trials, "measure_blocks", measured)


@pytest.mark.parametrize("price", [0.0, BLOCK_PRICE, 70.0])
def test_the_price_of_a_block_is_found_whatever_the_devices_pace(task, monkeypatch, price):
    for rate in (3.0, 5000.0):
        a_device_that(monkeypatch, rate, price)
        assert clock_price(task, repeats=1) == pytest.approx(price, abs=1e-6)


def test_a_device_on_which_samples_cost_nothing_has_a_large_price_but_no_endless_one(
    task, monkeypatch
):
    flat = Costs([1e-5] * 9, [1e-5] * 9)
    monkeypatch.setattr(plan_trials, "measure_blocks", lambda *args, **kwargs: flat)
    assert 1000 < clock_price(task, repeats=1) < 10000


def test_a_task_forecasts_for_its_own_mini_batch(task):
    found = task.forecast(Plan(4, "gpipe", 4))
    assert found.held_bytes[0] == 32 * task.forecast(Plan(4, "naive", 32)).held_bytes[0]
