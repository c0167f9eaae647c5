"""A pipeline does what the uncut model does, for every schedule, and fails in the open."""

import copy
import functools
import threading
import time
from itertools import pairwise

import pytest
import torch
from holders import HOLDERS
from torch import nn
from ways import WAYS, weight_normed

from mpcourse.devices.devices import get_devices
from mpcourse.pipeline import pipeline as pipeline_module
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.stage import Stage
from mpcourse.schedules.actions import Action, ScheduleError
from mpcourse.schedules.named import SCHEDULES, make_schedule, num_devices_for
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule

close = functools.partial(torch.testing.assert_close, check_device=False)  # GPUs against the host
ONE_PER_DEVICE = ("naive", "gpipe", "1f1b", "zb-h1", "zb-h2")
LOSS = nn.CrossEntropyLoss()


def make_stages(count: int) -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double() for _ in range(count)]


def make_batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(samples, 6, dtype=torch.double), torch.randint(0, 6, (samples,))


def assert_trains_as_uncut(pipeline: Pipeline, uncut: nn.Module, samples: int, loss_fn=LOSS):
    """Three steps with momentum: loss, gradients, parameters."""
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (pipeline, uncut)
    ]
    for _ in range(3):
        inputs, targets = make_batch(samples)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = pipeline.step(inputs, targets, loss_fn)
        expected = loss_fn(uncut(inputs), targets)
        expected.backward()
        assert loss.dim() == 0
        assert not loss.requires_grad
        close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(pipeline.parameters(), uncut.parameters(), strict=True):
            close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
        for optimizer in optimizers:
            optimizer.step()
    for ours, theirs in zip(pipeline.parameters(), uncut.parameters(), strict=True):
        close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("samples", "cut"), [(5, 1), (5, 2), (7, 3), (16, 4), (5, 16), (16, 16)])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("schedule", ONE_PER_DEVICE)
def test_equal_to_the_uncut_model(schedule, num_stages, samples, cut):
    stages = make_stages(num_stages)
    uncut = copy.deepcopy(nn.Sequential(*stages))
    pipeline = Pipeline(stages, schedule=schedule, num_microbatches=cut)
    assert_trains_as_uncut(pipeline, uncut, samples)
    inputs, _ = make_batch(samples)
    close(pipeline(inputs), uncut(inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("samples", "cut"), [(5, 1), (5, 2), (9, 4), (8, 8)])
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("schedule", ["interleaved", "zb-v"])
def test_equal_with_two_stages_a_device(schedule, num_devices, samples, cut):
    stages = make_stages(2 * num_devices)
    uncut = copy.deepcopy(nn.Sequential(*stages))
    pipeline = Pipeline(stages, get_devices(num_devices), schedule, num_microbatches=cut)
    assert_trains_as_uncut(pipeline, uncut, samples)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_equal_with_ragged_sizes_and_both_reductions(size):
    for loss_fn in (LOSS, nn.CrossEntropyLoss(reduction="sum")):
        stages = make_stages(2)
        uncut = copy.deepcopy(nn.Sequential(*stages))
        assert_trains_as_uncut(Pipeline(stages, microbatch_size=size), uncut, 5, loss_fn)


class Block(nn.Module):
    """A transformer layer that takes and returns tokens and their mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, 0.0, batch_first=True)

    def forward(self, given):
        tokens = self.layer(given["tokens"], src_key_padding_mask=given["mask"])
        return {"tokens": tokens, "mask": given["mask"]}


class LastBlock(Block):
    def forward(self, given):
        return super().forward(given)["tokens"].mean(1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_transformer_with_dicts_between_its_stages(schedule):
    stages = [kind().double() for kind in (Block, Block, Block, LastBlock)]
    uncut = copy.deepcopy(nn.Sequential(*stages))
    pipeline = Pipeline(
        stages, get_devices(num_devices_for(schedule, 4)), schedule, num_microbatches=4
    )
    mask = torch.zeros(6, 5, dtype=torch.bool)
    mask[2, 3:] = True
    inputs = {"tokens": torch.randn(6, 5, 6, dtype=torch.double), "mask": mask}
    targets = torch.randint(0, 6, (6,))
    expected = LOSS(uncut(inputs), targets)
    expected.backward()
    close(pipeline.step(inputs, targets, LOSS), expected.detach(), rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(pipeline.parameters(), uncut.parameters(), strict=True):
        close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)


# What a training loop does around the steps. Each is done to the uncut model and to the pipeline;
# what it returns, every weight and every gradient afterwards have to be the same.


def input_s_gradient(net, step):
    leaf = make_batch(6)[0].requires_grad_()
    step(6, leaf)
    return leaf.grad


def saved_and_loaded(net, step):
    step(5)
    state = {name: 2 * value for name, value in net.state_dict().items()}
    net.load_state_dict(state)
    return step(5), list(state.values())


def copied(net, step):
    twin = copy.deepcopy(net)
    step(5)
    twin.load_state_dict(net.state_dict())
    return twin(make_batch(3)[0])


def without_gradients(net, step):
    with torch.no_grad():
        output = net(make_batch(4)[0])
    return output, step(3)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    "way", [*WAYS, input_s_gradient, saved_and_loaded, copied, without_gradients]
)
def test_what_a_training_loop_does_has_the_same_effect_as_on_the_uncut_model(way, schedule):
    stages = make_stages(2)
    uncut = nn.Sequential(*copy.deepcopy(stages))
    pipeline = Pipeline(stages, schedule=schedule, num_microbatches=3)

    def step_uncut(samples, inputs=None):
        batch, targets = make_batch(samples)
        loss = LOSS(uncut(batch if inputs is None else inputs), targets)
        loss.backward()
        return loss.detach()

    def step_pipeline(samples, inputs=None):
        batch, targets = make_batch(samples)
        return pipeline.step(batch if inputs is None else inputs, targets, LOSS)

    torch.manual_seed(0)
    expected = way(uncut, step_uncut)
    torch.manual_seed(0)
    found = way(pipeline, step_pipeline)
    # on a GPU, weight_norm takes its roots in float32
    gap = 1e-9 if way is weight_normed and torch.cuda.is_available() else 1e-12
    same = functools.partial(close, rtol=1e3 * gap, atol=gap)
    if expected is not None:
        same(found, expected)
    for ours, theirs in zip(pipeline.parameters(), uncut.parameters(), strict=True):
        same(ours, theirs)
        assert (ours.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            same(ours.grad, theirs.grad)


@pytest.mark.parametrize("graph_of", ["inputs", "targets"])
def test_a_mini_batch_with_a_graph_is_refused_unless_it_is_gone_through_once(graph_of):
    layer, loss_fn = nn.Linear(6, 6).double(), nn.MSELoss()
    batch = {"inputs": make_batch(4)[0], "targets": make_batch(4)[0]}
    batch[graph_of] = torch.tanh(layer(batch[graph_of]))
    pipeline = Pipeline(make_stages(2), num_microbatches=2)
    with pytest.raises(ValueError, match=r"has a graph of its own, .* first stage, or detach"):
        pipeline.step(*batch.values(), loss_fn)
    assert all(parameter.grad is None for parameter in pipeline.parameters())
    Pipeline(list(pipeline.stages), num_microbatches=1).step(*batch.values(), loss_fn)
    assert layer.weight.grad is not None


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", [name for name in HOLDERS if name != "packed sequence"])
def test_a_stage_that_hands_on_what_is_not_taken_apart_is_refused(name, recompute):
    stages = make_stages(2)
    stages[0].register_forward_hook(lambda _, inputs, output: HOLDERS[name](output))
    pipeline = Pipeline(stages, num_microbatches=2, recompute=recompute)
    with pytest.raises(TypeError, match="is not taken apart: pass its tensors in a dict") as caught:
        pipeline.step(*make_batch(4), LOSS)
    assert "0F0: stage 0, forward of micro-batch 0" in caught.value.__notes__[0]


def test_evaluation_before_training_leaves_no_gradients_and_no_graph():
    pipeline = Pipeline(make_stages(2), num_microbatches=3).eval()
    output = pipeline(make_batch(7)[0])
    assert not output.requires_grad
    assert all(parameter.grad is None for parameter in pipeline.parameters())
    assert {str(event.action)[1] for event in pipeline.timeline.events} == {"F"}


def test_a_device_may_be_named_more_often_than_there_are_cores():
    stages = make_stages(4)
    uncut = copy.deepcopy(nn.Sequential(*stages))
    assert_trains_as_uncut(Pipeline(stages, ["cpu"] * 4, num_microbatches=2), uncut, 6)


@pytest.mark.parametrize("schedule", ONE_PER_DEVICE)
def test_the_timeline_has_every_action_in_the_schedule_s_order(schedule):
    pipeline = Pipeline(make_stages(2), schedule=schedule, num_microbatches=3)
    pipeline.step(*make_batch(6), LOSS)
    for device, actions in enumerate(make_schedule(schedule, 2, 2, 3)):
        mine = [e for e in pipeline.timeline.events if e.device_index == device]
        assert [event.action for event in mine] == actions
        assert all(one.end <= other.start for one, other in pairwise(mine))


class Nap(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, rows):
        time.sleep(self.seconds)
        return rows * self.scale


def test_a_stage_that_sleeps_shows_where_the_simulator_puts_it():
    naps = [0.05, 0.1]
    pipeline = Pipeline([Nap(nap) for nap in naps], schedule="gpipe", num_microbatches=3)
    pipeline.step(torch.ones(3, 1), torch.ones(3, 1), nn.MSELoss())
    predicted = simulate(gpipe_schedule(2, 3), Costs(naps, 0.0))
    measured = {event.action: event for event in pipeline.timeline.events}
    for event in predicted.events:
        if event.action.kind == "F":
            assert measured[event.action].start == pytest.approx(event.start, abs=0.04)
            assert measured[event.action].duration >= 0.99 * event.duration


class Failing(nn.Module):
    """Raises at its third call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, rows):
        self.calls += 1
        if self.calls == 3:
            raise KeyError("no such layer")
        return rows * self.scale


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_that_raises_stops_the_step_and_is_named(schedule):
    stages = [Nap(0.0), Failing()]
    pipeline = Pipeline(stages, schedule=schedule, num_microbatches=8)
    batch = torch.ones(8, 1), torch.ones(8, 1)
    with pytest.raises(KeyError, match="no such layer") as caught:
        pipeline.step(*batch, nn.MSELoss())
    note = caught.value.__notes__[0]
    where = f"on {pipeline.devices[1]}"
    assert note == f"raised in device 1, 1F2: stage 1, forward of micro-batch 2, {where}"
    assert stages[1].calls == 3
    assert pipeline.step(*batch, nn.MSELoss()).item() == pytest.approx(0.0)


def test_what_does_not_fit_is_refused_before_anything_runs():
    shared = nn.Linear(6, 6)
    two = make_stages(2)
    for arguments, words in [
        (([],), "stages is empty"),
        (([shared, shared],), "stages 0 and 1 share the tensor weight"),
        ((two, ["cpu"]), "needs 1 stages; got 2"),
        ((two, None, "2f2b"), "schedule is one of naive, gpipe"),
        ((make_stages(3), None, "zb-v"), "even number of stages; got 3"),
        ((two, None, gpipe_schedule(3, 2)), r"has the stages \[0, 1, 2\]; got 2 modules"),
        ((two, ["cpu"], gpipe_schedule(2, 2)), "for 2 devices; got 1"),
        ((two[:1], ["cpu"], [["0F0"]]), "device 0: '0F0' is no Action"),
    ]:
        with pytest.raises(ValueError, match=words):
            Pipeline(*arguments, num_microbatches=2)
    with pytest.raises(ValueError, match="exactly one"):
        Pipeline(two)
    with pytest.raises(TypeError, match="stage 1 is a builtin"):
        Pipeline([two[0], torch.relu], num_microbatches=2)


def test_a_schedule_of_one_s_own_runs_for_its_number_of_micro_batches_only():
    own = [[Action(0, "F", 0), Action(0, "F", 1), Action(0, "B", 1), Action(0, "B", 0)]]
    stages = make_stages(1)
    uncut = copy.deepcopy(stages[0])
    pipeline = Pipeline(stages, schedule=own, num_microbatches=2)
    assert_trains_as_uncut(pipeline, uncut, 4)
    pipeline = Pipeline(make_stages(1), schedule=own, num_microbatches=3)
    with pytest.raises(ScheduleError, match=r"1 stages|0F2"):
        pipeline.step(*make_batch(3), LOSS)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_stage_type_of_one_s_own_does_every_action(schedule):
    done = []

    class Noting(Stage):
        def run_backward(self, kind, index, gradients):
            done.append((self.is_first, kind, index))
            return super().run_backward(kind, index, gradients)

    class Own(Pipeline):
        stage_type = Noting

    stages = make_stages(2)
    uncut = copy.deepcopy(nn.Sequential(*stages))
    assert_trains_as_uncut(Own(stages, None, schedule, num_microbatches=4), uncut, 8)
    rows = make_schedule(schedule, 2, 2, 4)
    planned = [(not stage, kind, i) for row in rows for stage, kind, i in row if kind != "F"]
    assert sorted(done) == sorted(3 * planned)


def test_no_gradient_is_made_for_the_data():
    seen = []

    class Spy(nn.Linear):
        def forward(self, rows):
            seen.append(rows.requires_grad)
            return super().forward(rows)

    pipeline = Pipeline([Spy(6, 6), Spy(6, 6)], schedule="naive", num_microbatches=1)
    pipeline.step(torch.ones(2, 6), torch.arange(2), LOSS)
    assert seen == [False, True]


def test_autocast_reaches_the_stages():
    seen = []

    class Spy(nn.Module):
        def forward(self, rows):
            seen.append((rows @ rows.T).dtype)
            return rows

    pipeline = Pipeline([Spy()], num_microbatches=1)
    with torch.autocast(pipeline.devices[0].device.type, dtype=torch.bfloat16):
        pipeline(torch.ones(2, 2))
    assert seen == [torch.bfloat16]


def test_targets_are_brought_over_whole_and_by_the_caller(monkeypatch):
    """Copied between two GPUs by a worker, they would wait for the kernels of both."""
    asked, bring_to = [], pipeline_module.bring_to

    def noting(value, place):
        asked.append((len(value), threading.current_thread() is threading.main_thread()))
        return bring_to(value, place)

    monkeypatch.setattr(pipeline_module, "bring_to", noting)
    Pipeline(make_stages(2), num_microbatches=3).step(*make_batch(6), LOSS)
    assert sorted(asked) == [(2, False)] * 3 + [(6, True)]
