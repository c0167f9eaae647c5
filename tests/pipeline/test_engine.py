"""The engine waits for what has to come, for nothing else, and never for ever."""

import _thread
import dataclasses
import gc
import threading
import time
import weakref

import pytest
import torch
from threads import in_time
from torch import nn

from mpcourse.data_parallel import DataParallel, parallel_apply
from mpcourse.devices import workers
from mpcourse.devices.devices import get_devices
from mpcourse.devices.workers import collect
from mpcourse.pipeline import pipeline as pipeline_module
from mpcourse.pipeline.batch_norm import defer_batch_norms
from mpcourse.pipeline.engine import link_actions, run_schedule
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.actions import Action
from mpcourse.splitting import ToyModel

LIMIT_S = 20.0  # for what takes well under one second
BATCH = torch.ones(8, 4), torch.ones(8, 4)
LOSS = nn.MSELoss()


def linears(count: int = 2) -> list[nn.Module]:
    return [nn.Linear(4, 4) for _ in range(count)]


@torch.no_grad()
def uncut_loss(stages) -> torch.Tensor:
    """The loss on the CPU, to which it moves the stages."""
    return LOSS(nn.Sequential(*stages).cpu()(BATCH[0]), BATCH[1])


@pytest.mark.parametrize("devices", [["cpu:0", "cpu:0"], ["cpu", "cpu:0"], get_devices(1) * 2])
def test_a_device_that_is_named_twice_is_refused(devices):
    with pytest.raises(ValueError, match="is named twice; each row of the schedule needs its own"):
        Pipeline(linears(), devices, num_microbatches=2)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("own", [0, 1, 2])
def test_a_step_may_run_in_one_of_its_own_workers(own, schedule):
    """The caller's own row would otherwise wait for rows that nobody has begun."""
    devices = get_devices(3)
    pipeline = Pipeline(linears(3), devices, schedule, num_microbatches=4)
    expected = pipeline.step(*BATCH, LOSS)
    torch.testing.assert_close(in_time(devices[own].run, pipeline.step, *BATCH, LOSS), expected)


class HandsOn(nn.Module):
    """Computes on another device's worker."""

    def __init__(self, device) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.device = device

    def forward(self, value):
        return self.device.run(self.layer, value)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize(("stage", "other"), [(0, 1), (1, 0), (0, 0), (1, 1)])
def test_a_stage_may_hand_work_to_the_pipeline_s_other_worker(schedule, stage, other):
    devices = get_devices(2)
    stages = linears()
    stages[stage] = HandsOn(devices[other])
    pipeline = Pipeline(stages, devices, schedule, num_microbatches=4)
    loss = in_time(pipeline.step, *BATCH, LOSS)
    torch.testing.assert_close(loss.cpu(), uncut_loss(stages))
    assert all(weight.grad is not None for weight in pipeline.parameters())


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("make", [lambda on: DataParallel(nn.Linear(10, 5), on), ToyModel])
def test_a_model_on_the_same_devices_may_be_part_of_a_stage(make, place):
    devices, stages = get_devices(2), linears()
    stages[place] = nn.Sequential(nn.Linear(4, 10), make(devices), nn.Linear(5, 4))
    pipeline = Pipeline(stages, devices, num_microbatches=2)
    assert torch.isfinite(in_time(pipeline.step, *BATCH, LOSS))


def test_two_pipelines_on_the_same_devices_from_two_threads():
    devices = get_devices(3)
    pipelines = [
        Pipeline(linears(3), order, num_microbatches=4) for order in (devices, devices[::-1])
    ]
    expected = [pipeline.step(*BATCH, LOSS) for pipeline in pipelines]
    found = {0: [], 1: []}

    def steps(number: int) -> None:
        for _ in range(30):
            found[number].append(pipelines[number].step(*BATCH, LOSS))

    threads = [threading.Thread(target=steps, args=(n,), daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert [len(found[number]) for number in range(2)] == [30, 30]
    for number in range(2):
        torch.testing.assert_close(found[number][-1], expected[number])


class Naps(nn.Module):
    """Takes its time, and counts its calls."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0
        self.seconds = seconds

    def forward(self, value):
        self.calls += 1
        time.sleep(self.seconds)
        return self.layer(value)


def apply_all(pipelines, devices):
    calls = [(*BATCH, LOSS)] * len(pipelines)
    return parallel_apply([pipeline.step for pipeline in pipelines], calls, devices=devices)


def submit_all(pipelines, devices):
    together = threading.Barrier(len(pipelines))

    def job(pipeline):
        together.wait(LIMIT_S)
        return pipeline.step(*BATCH, LOSS)

    return collect([d.submit(job, p) for d, p in zip(devices, pipelines, strict=True)])


@pytest.mark.parametrize("call", [apply_all, submit_all])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipelines_on_the_same_devices_from_inside_their_workers(call, schedule):
    """One device runs a row of the first above one of the second; no other may do the reverse."""
    devices = get_devices(3)
    pipelines = [
        Pipeline([Naps(0.0), Naps(0.0), Naps(0.03)], order, schedule, num_microbatches=4)
        for order in (devices, devices, devices[::-1])
    ]
    expected = [pipeline.step(*BATCH, LOSS) for pipeline in pipelines]
    losses = in_time(call, pipelines, devices)
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_one_pipeline_may_be_stepped_by_two_threads_at_once(schedule):
    devices = get_devices(2)
    pipeline = Pipeline([Naps(0.0), Naps(0.01)], devices, schedule, num_microbatches=4)
    loss = pipeline.step(*BATCH, LOSS)
    once = [weight.grad.clone() for weight in pipeline.parameters()]
    for call in (apply_all, submit_all):
        pipeline.zero_grad()
        assert in_time(call, [pipeline] * 2, devices) == [loss] * 2
        torch.testing.assert_close([w.grad for w in pipeline.parameters()], [2 * g for g in once])


def test_the_statistics_of_two_mini_batches_at_once_are_refused():
    devices = get_devices(2)
    stages = [nn.Sequential(Naps(0.01), nn.BatchNorm1d(4)), Naps(0.0)]
    pipeline = Pipeline(defer_batch_norms(nn.ModuleList(stages)), devices, num_microbatches=4)
    with pytest.raises(RuntimeError, match="in the midst of another mini-batch: step in turn"):
        in_time(submit_all, [pipeline] * 2, devices)
    assert stages[0][1].num_batches_tracked == 1
    assert torch.isfinite(pipeline.step(*BATCH, LOSS))


class Raises(nn.Module):
    """Raises at once, or after a while."""

    def __init__(self, error, seconds=0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.error, self.seconds = error, seconds

    def forward(self, value):
        time.sleep(self.seconds)
        raise self.error


def test_the_first_error_comes_out_not_that_of_the_first_device():
    def run(action, value):
        time.sleep(0.3 if action.stage_index == 0 else 0.0)
        raise KeyError(action.stage_index)

    rows = link_actions([[Action(0, "F", 0)], [Action(1, "F", 0)]], 2)
    rows = [[action._replace(source=None, taker=None) for action in row] for row in rows]
    with pytest.raises(KeyError) as caught:
        run_schedule(rows, get_devices(2), run, gradients=False)
    assert caught.value.args == (1,)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Takes no notes; not even Python's own context managers can raise it again as it is."""

    reason: str


@pytest.mark.parametrize("stage", [0, 1])
def test_an_exception_that_takes_no_note_comes_out_and_the_workers_live_on(stage):
    stages = linears()
    stages[stage] = Raises(Frozen("no"))
    pipeline = Pipeline(stages, num_microbatches=2)
    for _ in range(2):
        with pytest.raises((Frozen, dataclasses.FrozenInstanceError)):
            in_time(pipeline.step, *BATCH, LOSS)
    assert [device.run(lambda: 7) for device in pipeline.devices] == [7, 7]


class Remembers(nn.Module):
    """Keeps a weak reference to what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.made = []

    def forward(self, value):
        made = torch.tanh(self.layer(value))
        self.made.append(weakref.ref(made))
        return made * made  # which keeps `made` for the backward


def test_a_failed_step_keeps_no_activations():
    stages = [Remembers(), Raises(KeyError("no"), seconds=0.05)]
    pipeline = Pipeline(stages, schedule="gpipe", num_microbatches=2)
    gc.collect()
    gc.disable()  # what is freed now is freed without its help
    try:
        for _ in range(2):
            try:
                pipeline.step(*BATCH, LOSS)
            except KeyError:
                pass
        assert stages[0].made
        assert [made() for made in stages[0].made] == [None] * len(stages[0].made)
    finally:
        gc.enable()


def test_no_action_starts_after_one_has_failed():
    stages = [Naps(0.1), Naps(0.0)]
    pipeline = Pipeline(stages, schedule="gpipe", num_microbatches=8)
    with pytest.raises(ZeroDivisionError):
        pipeline.step(*BATCH, lambda output, target: 1 / 0, reduction="mean")
    assert stages[0].calls <= 3  # of 8: the second was under way when the first came to its loss


def test_an_interrupt_stops_all_devices_at_once():
    stages = [Naps(0.05), Naps(0.05)]
    pipeline = Pipeline(stages, schedule="gpipe", num_microbatches=8)
    timer = threading.Timer(0.12, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pipeline.step(*BATCH, LOSS)
    timer.join()
    seen = [stage.calls for stage in stages]
    time.sleep(0.2)
    assert [stage.calls for stage in stages] == seen  # nothing goes on behind the caller's back
    assert max(seen) < 8
    assert torch.isfinite(pipeline.step(*BATCH, LOSS))


def test_a_device_that_waits_hears_at_once_that_another_has_failed(monkeypatch):
    monkeypatch.setattr(workers, "POLL_S", 10 * LIMIT_S)  # looking up now and then is no help
    stages = [Raises(KeyError("no"), seconds=0.1), nn.Linear(4, 4)]
    pipeline = Pipeline(stages, num_microbatches=2)
    with pytest.raises(KeyError):
        in_time(pipeline.step, *BATCH, LOSS)


def test_inference_mode_of_the_caller_does_not_reach_a_training_step(monkeypatch):
    bring_to = pipeline_module.bring_to  # here it copies, as to a GPU
    monkeypatch.setattr(pipeline_module, "bring_to", lambda *given: bring_to(*given).clone())
    pipeline = Pipeline(linears(), num_microbatches=2)
    with torch.inference_mode():
        pipeline.step(*BATCH, LOSS)
    assert all(weight.grad is not None for weight in pipeline.parameters())


def test_a_stage_that_is_replaced_is_the_one_that_is_trained():
    pipeline = Pipeline(linears(), num_microbatches=2)
    old = pipeline.stages[1]
    pipeline.stages[1] = new = nn.Linear(4, 4, device=old.weight.device)
    loss = pipeline.step(*BATCH, LOSS)
    torch.testing.assert_close(loss.cpu(), uncut_loss(pipeline.stages))
    assert old.weight.grad is None
    assert new.weight.grad is not None


@pytest.mark.parametrize("move", [lambda p: p.to("meta"), lambda p: p.to_empty(device="meta")])
def test_a_pipeline_cannot_be_moved_as_one(move):
    pipeline = Pipeline(linears(), num_microbatches=2)
    with pytest.raises(ValueError, match="have devices of their own"):
        move(pipeline)
    assert {weight.device.type for weight in pipeline.parameters()} <= {"cpu", "cuda"}


def test_a_pipeline_can_change_its_precision():
    pipeline = Pipeline(linears(), num_microbatches=2).double()
    loss = pipeline.step(*(tensor.double() for tensor in BATCH), LOSS)
    assert loss.dtype == torch.double


def test_what_cannot_be_a_stage_is_refused():
    inner = Pipeline(linears(), num_microbatches=2)
    with pytest.raises(TypeError, match="holds a Pipeline, whose forward makes no gradients"):
        Pipeline([inner, nn.Linear(4, 4)], num_microbatches=2)
    norm = nn.BatchNorm1d(4, affine=False)
    with pytest.raises(ValueError, match=r"share the tensor 1\.running_mean"):
        Pipeline([norm, nn.Sequential(nn.Linear(4, 4), norm)], num_microbatches=2)


def test_a_last_batch_that_fits_no_schedule_says_what_to_do():
    pipeline = Pipeline(linears(4), get_devices(2), "interleaved", microbatch_size=2)
    pipeline.step(*BATCH, LOSS)
    with pytest.raises(ValueError, match="multiple") as caught:
        pipeline.step(torch.ones(9, 4), torch.ones(9, 4), LOSS)
    assert "makes 5 micro-batches" in caught.value.__notes__[0]
    assert "drop_last=True" in caught.value.__notes__[0]


def test_micro_batches_of_ignored_targets_only_count_nothing():
    torch.manual_seed(0)
    stages, loss_fn = linears(), nn.CrossEntropyLoss()
    uncut = nn.Sequential(*stages)
    targets = torch.tensor([0, 1, -100, -100, 2, 3])
    inputs = torch.randn(6, 4)
    expected = loss_fn(uncut(inputs), targets)
    wanted = torch.autograd.grad(expected, list(uncut.parameters()))
    pipeline = Pipeline(stages, num_microbatches=3)
    loss = pipeline.step(inputs, targets, loss_fn, microbatch_shares=[0.5, 0.0, 0.5])
    torch.testing.assert_close(loss.cpu(), expected.detach())
    torch.testing.assert_close([w.grad.cpu() for w in pipeline.parameters()], list(wanted))


def test_a_pipeline_on_the_cpu_asks_nothing_of_cuda_though_it_was_used_before(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: asked.append(device))
    devices = get_devices(2) if not torch.cuda.is_available() else ["cpu:0", "cpu:1"]
    Pipeline(linears(), devices, num_microbatches=2).step(*BATCH, LOSS)
    assert asked == []


def test_a_value_wakes_its_taker_at_once(monkeypatch):
    """Without a wake-up the taker would see the value only when it looks up by itself."""
    pipeline = Pipeline(linears(), get_devices(2), "1f1b", num_microbatches=8)
    pipeline.step(*BATCH, LOSS)
    monkeypatch.setattr(workers, "POLL_S", 600.0)
    for _ in range(20):
        in_time(pipeline.step, *BATCH, LOSS)
