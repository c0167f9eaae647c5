"""A stage that recomputes: same step as without, its inputs alone held, failures named."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpcourse.devices.devices import as_devices, get_devices
from mpcourse.memory import ByteCounter, recomputed
from mpcourse.pipeline.batch_norm import defer_batch_norms
from mpcourse.pipeline.dropout import ReproducibleDropout
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.stage import Stage
from mpcourse.quantization import prepare_qat
from mpcourse.schedules.named import SCHEDULES, make_schedule, num_devices_for
from mpcourse.schedules.simulation import Costs, simulate

same = functools.partial(torch.testing.assert_close, rtol=0, atol=0, check_device=False)
close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12, check_device=False)
LOSS = nn.MSELoss()
FLAGS = (True, [False, True, False, True], [True, True, False, False])


class Calls(nn.Module):
    """A layer that does something to its input and counts how often."""

    def __init__(self, does=torch.tanh) -> None:
        super().__init__()
        self.does = does
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.double))
        self.calls = 0

    def forward(self, rows):
        self.calls += 1
        return self.does(rows * self.weight)


def linear(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), *more, nn.Tanh(), nn.Linear(4, 4)).double()


def make_batch(samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, samples, 4, dtype=torch.double).unbind()


def make_pipeline(stages, schedule, recompute, microbatches=4) -> Pipeline:
    devices = get_devices(num_devices_for(schedule, len(stages)))
    return Pipeline(stages, devices, schedule, num_microbatches=microbatches, recompute=recompute)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def assert_same_step(stages, schedule, recompute, batch) -> None:
    """Two steps, with and without: loss, gradients and buffers to the bit."""
    plain = make_pipeline(copy.deepcopy(stages), schedule, recompute=False)
    again = make_pipeline(stages, schedule, recompute)
    for _ in range(2):
        torch.manual_seed(7)
        expected = plain.step(*batch, LOSS)
        drawn = torch.get_rng_state()
        torch.manual_seed(7)
        same(again.step(*batch, LOSS), expected)
        same(torch.get_rng_state(), drawn)
    same(gradients(again), gradients(plain))
    same(dict(again.named_buffers()), dict(plain.named_buffers()))


@pytest.mark.parametrize("recompute", FLAGS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_that_recomputes_runs_twice_and_the_others_once(schedule, recompute):
    stages = [Calls() for _ in range(4)]
    make_pipeline(stages, schedule, recompute).step(*make_batch(), LOSS)
    flags = [True] * 4 if recompute is True else recompute
    assert [stage.calls for stage in stages] == [8 if flag else 4 for flag in flags]


@pytest.mark.parametrize("recompute", FLAGS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_batch_norms_count_a_batch_once(schedule, recompute):
    stages = [linear(nn.BatchNorm1d(4)) for _ in range(4)]
    stages[1:3] = [defer_batch_norms(stage) for stage in stages[1:3]]
    assert_same_step(stages, schedule, recompute, make_batch())
    counted = [stage[1].num_batches_tracked.item() for stage in stages]
    assert counted == [8, 2, 2, 8]  # two steps of four micro-batches


class Renorm(nn.BatchNorm1d):
    """Moves the statistics that it then normalises with; torch does not say that they change."""

    def forward(self, rows):
        nn.functional.batch_norm(rows, self.running_mean, self.running_var, training=True)
        self.num_batches_tracked.add_(1)
        return (rows - self.running_mean) / (self.running_var + self.eps).sqrt()


class Largest(nn.Module):
    """Divides by the largest number so far: a new tensor each time, and none at first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", None)

    def forward(self, rows):
        now = rows.detach().abs().max()
        self.most = now if self.most is None else torch.maximum(self.most, now)
        return rows / self.most


REMEMBER = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "renorm": lambda: Renorm(4),
    "largest": Largest,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "quantization-aware": lambda: prepare_qat(nn.Sequential(nn.Linear(4, 4))),
    "dropout": lambda: nn.Dropout(0.5),
    "reproducible dropout": lambda: ReproducibleDropout(0.5, seed=1),
}


@pytest.mark.parametrize("part", REMEMBER)
def test_a_part_that_remembers_runs_again_from_what_it_found(part):
    """As a stage, and called for each micro-batch: all forwards come before the backwards."""
    torch.manual_seed(0)
    layers = linear(REMEMBER[part]())
    layers(make_batch()[0])
    assert_same_step([copy.deepcopy(layers)], "gpipe", True, make_batch())
    results = []
    for forward in (nn.Module.__call__, recomputed):
        torch.manual_seed(7)
        net, batch = copy.deepcopy(layers), torch.linspace(-3, 2, 48, dtype=torch.double)
        outputs = [forward(net, rows) for rows in batch.reshape(3, 4, 4)]
        torch.stack(outputs).square().sum().backward()
        results.append([outputs, gradients(net), list(net.buffers()), torch.get_rng_state()])
    close(*results)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_random_numbers_of_a_stage_s_own_generator_are_drawn_once(schedule, recompute):
    """The oracle is the uncut model: such a dropout draws by samples, wherever the cuts are."""
    torch.manual_seed(0)
    stages = [linear(ReproducibleDropout(0.5, seed=seed)) for seed in range(4)]
    uncut = nn.Sequential(*copy.deepcopy(stages))
    pipeline = make_pipeline(stages, schedule, recompute)
    for _ in range(2):
        inputs, targets = make_batch(10)  # micro-batches of 3 and of 2
        loss = LOSS(uncut(inputs), targets)
        loss.backward()
        close(pipeline.step(inputs, targets, LOSS), loss.detach())
    close(gradients(pipeline), gradients(uncut))


def test_the_draws_of_the_shared_generator_are_those_without():
    """One device at a time (naive), or one device alone: else no seed fixes who draws first."""
    make = functools.partial(linear, nn.Dropout(0.5))
    assert_same_step([make() for _ in range(4)], "naive", True, make_batch())
    assert_same_step([make()], "zb-h1", True, make_batch())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_that_draw_at_the_same_time_each_draw_theirs_again(schedule):
    drawn: list[list[torch.Tensor]] = [[] for _ in range(4)]

    def draws(index, rows):
        for _ in range(20):  # other stages draw between two of these
            rows = rows * (noise := torch.rand(rows.shape, dtype=rows.dtype, device=rows.device))
            drawn[index].append(noise.flatten()[0].item())
        return rows

    stages = [Calls(functools.partial(draws, index)) for index in range(4)]
    recompute = [True, True, False, True]
    make_pipeline(stages, schedule, recompute, microbatches=8).step(*make_batch(), LOSS)
    for numbers, again in zip(drawn, recompute, strict=True):
        assert len(numbers) == (320 if again else 160)
        assert len(set(numbers)) == 160
    first_runs = {number for numbers in drawn for number in numbers}
    assert len(first_runs) == 640  # nobody draws what another one has drawn


def test_autocast_holds_in_the_second_run():
    losses = []
    for recompute in (False, True):
        torch.manual_seed(0)
        stages = [linear().float(), linear().float()]
        pipeline = make_pipeline(stages, "1f1b", recompute)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = pipeline.step(*(part.float() for part in make_batch()), LOSS)
        losses.append([loss, *gradients(pipeline)])
    same(*losses)


def held_by(stage: Stage, count: int = 4) -> tuple[int, int]:
    """Bytes that forwards leave behind, the outputs aside, and those of one input."""
    rows = [torch.randn(64, 4, dtype=torch.double, requires_grad=True) for _ in range(count)]
    with ByteCounter(stage.module.state_dict(), rows) as counter:
        before = counter.live
        for index, value in enumerate(rows):
            stage.forward(index, value)
        return counter.live - before, 64 * 4 * 8


def test_during_the_first_run_layers_make_room_for_the_next():
    layers = nn.Sequential(*(Calls() for _ in range(20)))
    value = torch.randn(64, 4, dtype=torch.double, requires_grad=True)
    with ByteCounter(layers.state_dict(), value) as counter:
        before = counter.live
        Stage(layers, is_first=False, recompute=True).forward(0, value)
    assert counter.peak - before <= 3 * 64 * 4 * 8


@pytest.mark.parametrize("is_first", [True, False])
def test_between_forward_and_backward_the_inputs_alone_are_held(is_first):
    layers = nn.Sequential(*(Calls() for _ in range(5)))
    held, one = held_by(Stage(layers, is_first=is_first))
    assert held == 4 * 5 * one  # what each tanh gave; products go, the output of all stays
    assert held_by(Stage(layers, is_first=is_first, recompute=True)) == (0, one)


def test_the_peak_of_gpipe_s_step_is_all_inputs_and_one_micro_batch():
    """Counted in the worker's own thread, where all actions of the only device are done."""
    device = as_devices("cpu")[0]  # a GPU's backward has a thread of its own
    layers = nn.Sequential(*(Calls() for _ in range(20)))
    batch = make_batch(800)
    one = 100 * 4 * 8

    def peak(recompute: bool) -> int:
        pipeline = Pipeline([layers], [device], "gpipe", num_microbatches=8, recompute=recompute)
        with ByteCounter(layers.state_dict(), batch) as counter:
            before = counter.live
            pipeline.step(*batch, LOSS)
        return counter.peak - before

    found = {recompute: device.submit(peak, recompute).result() for recompute in (False, True)}
    activations = 20 * one  # of a micro-batch; its input is a view of the batch
    assert found[False] >= 8 * activations
    assert activations <= found[True] <= activations + 6 * one  # and a few on their way


@pytest.mark.parametrize("recompute", FLAGS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_the_simulator_says_is_held_is_what_the_run_held(schedule, recompute):
    pipeline = make_pipeline([linear() for _ in range(4)], schedule, recompute)
    pipeline.step(*make_batch(), LOSS)
    plan = make_schedule(schedule, 4, len(pipeline.devices), 4)
    costs = Costs(1, 2, input_backward=1, weight_backward=1, recompute=recompute)
    predicted = simulate(plan, costs)
    assert pipeline.timeline.peak_activations == predicted.peak_activations
    assert pipeline.timeline.peak_inputs == predicted.peak_inputs


def test_bad_flags_are_refused_before_a_stage_is_touched():
    class Still(nn.Module):
        def _apply(self, fn, recurse=True):
            raise AssertionError("the stage was moved")

    with pytest.raises(ValueError, match="recompute has 3 flags, there are 2 stages"):
        Pipeline([Still(), Still()], num_microbatches=2, recompute=[True, False, True])


@pytest.mark.parametrize(
    ("schedule", "action"), [("gpipe", "1B0: stage 1, backward"), ("zb-h1", "1I0: stage 1, input")]
)
def test_a_forward_that_fails_the_second_time_is_named(schedule, action):
    def fails_again(rows):
        if rows[0, 0].item() in seen:
            raise KeyError("no such layer")
        seen.add(rows[0, 0].item())
        return rows

    seen: set[float] = set()
    pipeline = make_pipeline([linear(), Calls(fails_again)], schedule, recompute=True)
    with pytest.raises(KeyError, match="no such layer") as caught:
        pipeline.step(*make_batch(), LOSS)
    again, where, _ = caught.value.__notes__
    assert again == "raised when the forward ran again for its backward"
    assert f"device 1, {action}" in where
    assert "of micro-batch 0, on" in where


@pytest.mark.parametrize("place", [0, 1])
def test_a_stage_that_changes_its_input_is_refused(place):
    stages = [linear(), linear()]
    stages[place].insert(0, nn.ReLU(inplace=True))
    pipeline = make_pipeline(stages, "1f1b", recompute=True)
    with pytest.raises(RuntimeError) as caught:
        pipeline.step(*make_batch(), LOSS)
    said = " ".join([str(caught.value), *caught.value.__notes__])
    assert "in place" in said
    assert f"{place}F0: stage {place}, forward of micro-batch 0" in said


class Within(nn.Module):
    """A part that is recomputed by itself, in one way or the other."""

    def __init__(self, part, run) -> None:
        super().__init__()
        self.part, self.run = part, run

    def forward(self, rows):
        return self.run(self.part, rows)


@pytest.mark.parametrize(
    "run", [recomputed, functools.partial(checkpoint, use_reentrant=False)], ids=["ours", "torch's"]
)
def test_a_recomputed_part_within_is_fine_until_it_draws(run):
    attention = nn.TransformerEncoderLayer(4, 2, 8, 0.0, dtype=torch.double)  # might draw
    drops = linear(ReproducibleDropout(0.5, seed=1))
    stages = [linear(), nn.Sequential(drops, Within(nn.Sequential(attention), run))]
    assert_same_step(stages, "1f1b", True, make_batch())
    stages[1][1].part.append(nn.Dropout(0.5))
    pipeline = make_pipeline(stages, "1f1b", [False, True])
    with pytest.raises(RuntimeError, match="recompute the one or the other, not both") as caught:
        pipeline.step(*make_batch(), LOSS)
    assert "device 1, 1B0" in " ".join(caught.value.__notes__)
