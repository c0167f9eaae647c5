"""A deferred batch norm remembers the whole mini-batch, and is an ordinary one everywhere else."""

import copy
import pickle

import pytest
import torch
from torch import nn

from mpcourse.memory import recomputed
from mpcourse.pipeline.batch_norm import (
    DeferredBatchNorm,
    defer_batch_norms,
    minibatch_statistics,
)
from mpcourse.pipeline.pipeline import Pipeline

LOSS = nn.MSELoss()
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def statistics(layer: nn.Module) -> list[torch.Tensor]:
    return [getattr(layer, name).clone().cpu() for name in STATISTICS]


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_same_memory(layer, other, tolerance=1e-12):
    for found, expected in zip(statistics(layer), statistics(other), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def deferred(norm: nn.Module) -> DeferredBatchNorm:
    return defer_batch_norms(copy.deepcopy(norm))


def see(layer, values, sizes):
    pieces = values.split(sizes)
    with minibatch_statistics(layer, len(pieces)):
        return [layer(piece) for piece in pieces]


SHAPES = [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (4, 3))]


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("sizes", [[12], [6, 6], [5, 5, 2], [2] * 6])
@pytest.mark.parametrize(("kind", "rest"), [*SHAPES, (nn.BatchNorm3d, (2, 2, 2))])
def test_it_remembers_what_the_uncut_layer_remembers(kind, rest, sizes, momentum):
    uncut = kind(3, momentum=momentum).double()
    layer = deferred(uncut)
    for _ in range(3):
        values = 5 + 3 * torch.randn(12, 3, *rest, dtype=torch.float64)
        uncut(values)
        see(layer, values, sizes)
    assert_same_memory(layer, uncut)


def test_outputs_and_gradients_are_those_of_the_ordinary_layer():
    plain = nn.BatchNorm1d(4).double()
    layer = deferred(plain)
    values = torch.randn(8, 4, dtype=torch.float64)
    for piece, found in zip(values.split(4), see(layer, values, 4), strict=True):
        expected = plain(piece)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        weights = torch.randn_like(expected)
        wanted = torch.autograd.grad((expected * weights).sum(), list(plain.parameters()))
        gradients = torch.autograd.grad((found * weights).sum(), list(layer.parameters()))
        torch.testing.assert_close(gradients, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_outside_of_a_mini_batch_it_is_an_ordinary_layer(training):
    plain = nn.BatchNorm2d(3).train(training)
    layer = deferred(plain)
    values = torch.randn(4, 3, 2, 2)
    torch.testing.assert_close(layer(values), plain(values))
    assert_same_memory(layer, plain)


USES = {
    "as it is": lambda layer: layer,
    "frozen": lambda layer: layer.requires_grad_(False),
    "half": lambda layer: layer.bfloat16(),
    "channels last": lambda layer: layer.to(memory_format=torch.channels_last),
    "copied": copy.deepcopy,
    "pickled": lambda layer: pickle.loads(pickle.dumps(layer)),
    "evaluation and back": lambda layer: layer.eval().train(),
    "evaluation": lambda layer: layer.eval(),
    "reset": lambda layer: layer.reset_running_stats() or layer,
    "reset all": lambda layer: layer.reset_parameters() or layer,
    "another momentum": lambda layer: setattr(layer, "momentum", 0.9) or layer,
    "no bias": lambda layer: setattr(layer, "bias", None) or layer,
    "it remembers no more": lambda layer: setattr(layer, "track_running_stats", False) or layer,
    "memory taken away": lambda layer: (
        setattr(layer, "running_mean", None) or setattr(layer, "running_var", None) or layer
    ),
    "its own state": lambda layer: layer.load_state_dict(layer.state_dict()) and layer,
}


@pytest.mark.parametrize("use", USES)
def test_a_mini_batch_of_one_piece_is_torch_s_own_layer(use):
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3)
    plain(torch.randn(4, 3, 2, 2))
    layer = USES[use](deferred(plain))
    plain = USES[use](plain)
    values = torch.randn(4, 3, 2, 2).to(plain.weight.dtype)
    [output], expected = see(layer, values, 4), plain(values)
    torch.testing.assert_close(output, expected)
    assert output.requires_grad == expected.requires_grad
    torch.testing.assert_close(layer.state_dict(), plain.state_dict())


def test_a_frozen_layer_keeps_its_memory_and_one_without_memory_has_none():
    layer = deferred(nn.BatchNorm1d(3, track_running_stats=False, affine=False))
    values = torch.randn(4, 3)
    outputs = see(layer, values, 2)
    torch.testing.assert_close(
        outputs[0], nn.functional.batch_norm(values[:2], None, None, training=True)
    )
    assert layer.running_mean is None


def test_an_error_leaves_the_memory_as_it_was():
    layer = deferred(nn.BatchNorm1d(3))
    before = statistics(layer)
    with pytest.raises(ValueError, match="more than 1 value"):  # the second piece is too small
        see(layer, torch.randn(5, 3), 4)
    assert_same(statistics(layer), before)
    layer(torch.randn(4, 3))  # an ordinary layer again
    assert layer.num_batches_tracked == 1


def test_a_model_is_converted_with_its_tensors_and_modes():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(nn.BatchNorm2d(2).eval()))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    weight = model[1][0].weight
    assert defer_batch_norms(model) is model
    assert type(model[1][0]) is DeferredBatchNorm
    assert model[1][0].weight is weight
    assert not model[1][0].training
    torch.testing.assert_close(model.state_dict(), state)
    model.load_state_dict(state)
    again = copy.deepcopy(model)
    torch.testing.assert_close(again.state_dict(), state)


@pytest.mark.parametrize(
    ("dtype", "mean", "spread", "tolerance"),
    [
        (torch.float16, 300, 200, 0.01),  # whose sum of squares no half can hold
        (torch.bfloat16, 300, 200, 0.01),
        (torch.float32, 1000, 1, 1e-4),  # where much could cancel
    ],
)
def test_the_statistics_are_gathered_in_single_and_nothing_cancels(dtype, mean, spread, tolerance):
    torch.manual_seed(0)
    values = (torch.randn(64, 3) * spread + mean).to(dtype)
    layer = deferred(nn.BatchNorm1d(3, momentum=1.0)).to(dtype)
    output = torch.cat(see(layer, values, 16))
    expected = nn.BatchNorm1d(3, momentum=1.0)
    expected(values.float())
    assert torch.isfinite(output).all()
    assert_same_memory(layer.float(), expected, tolerance)


def test_a_norm_that_is_held_twice_is_deferred_in_both_places_and_refused_where_it_runs_twice():
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(norm, nn.Sequential(norm))
    defer_batch_norms(model)
    assert model[0] is model[1][0]
    model(torch.randn(4, 2))  # outside of a mini-batch it is ordinary
    assert norm.num_batches_tracked == 2
    before = statistics(norm)
    for microbatches in (1, 3):
        pipeline = Pipeline([model], num_microbatches=microbatches)
        with pytest.raises(RuntimeError, match="give each place a batch norm of its own"):
            pipeline.step(torch.randn(6, 2), torch.randn(6, 2), LOSS)
        assert_same(statistics(norm), before)


def test_hooks_stay():
    norm = nn.BatchNorm1d(3)
    norm.register_forward_hook(lambda module, inputs, output: output * 100)
    values = torch.randn(4, 3)
    expected = copy.deepcopy(norm)(values)
    assert_same(see(defer_batch_norms(norm), values, 4)[0], expected)


class Recomputed(nn.Sequential):
    def forward(self, values):
        return recomputed(self[0], values)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_norm_in_a_part_that_is_recomputed_counts_once(recompute):
    uncut = nn.BatchNorm1d(3).double()
    layer = deferred(uncut)
    pipeline = Pipeline([Recomputed(layer)], num_microbatches=3, recompute=recompute)
    values = torch.randn(12, 3).double()
    pipeline.step(values, values, LOSS)
    uncut(values)
    assert_same_memory(layer, uncut)


@pytest.mark.parametrize("run", [lambda net, x: net.step(x, x, LOSS), lambda net, x: net(x)])
def test_a_step_and_a_forward_in_training_are_one_mini_batch_also_where_a_norm_is_a_stage(run):
    torch.manual_seed(0)
    uncut = nn.BatchNorm1d(3).double()
    pipeline = Pipeline([copy.deepcopy(uncut), nn.Linear(3, 3).double()], num_microbatches=3)
    defer_batch_norms(pipeline)
    values = torch.randn(12, 3).double()
    run(pipeline, values)
    uncut(values)
    assert_same_memory(pipeline.stages[0], uncut)


def test_a_shape_without_channels_is_refused():
    with pytest.raises(ValueError, match=r"shape \(N, C, ...\); got \(4,\)"):
        DeferredBatchNorm(4)(torch.randn(4))


def net_with_two_norms() -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm1d(6), nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3)
    ).double()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_in_a_pipeline_the_first_norm_agrees_with_the_uncut_model_and_a_deeper_one_does_not(
    schedule,
):
    uncut = net_with_two_norms()
    cut = defer_batch_norms(copy.deepcopy(uncut))
    pipeline = Pipeline([cut[:2], cut[2:]], schedule=schedule, microbatch_size=4)
    for _ in range(2):
        inputs = torch.randn(14, 6, dtype=torch.float64) * torch.arange(1, 7)
        pipeline.step(inputs, torch.randn(14, 3, dtype=torch.float64), LOSS)
        uncut(inputs)
    assert_same_memory(cut[0], uncut[0])
    assert cut[3].num_batches_tracked == 2
    assert (cut[3].running_var.cpu() - uncut[3].running_var).abs().max() > 1e-6
