"""Reproducible dropout drops the same values however a mini-batch is cut, in training only."""

import copy
import io

import pytest
import torch
from torch import nn

from mpcourse.data_parallel import DataParallel
from mpcourse.devices import get_devices
from mpcourse.pipeline.dropout import ReproducibleDropout


def test_the_same_seed_drops_the_same_places_and_another_seed_others():
    values = torch.ones(8, 16)
    first, again, other = (ReproducibleDropout(0.5, seed=seed)(values) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_mask_is_brought_to_where_the_values_are():
    values = torch.ones(8, 16, device="meta")
    assert ReproducibleDropout(0.5, seed=1)(values).device.type == "meta"


@pytest.mark.parametrize("sizes", [[9], [3, 3, 3], [4, 4, 1], [1] * 9])
def test_micro_batches_in_order_draw_what_the_whole_batch_draws(sizes):
    values = torch.randn(9, 7)
    whole, cut = (ReproducibleDropout(0.3, seed=5) for _ in range(2))
    pieces = torch.cat([cut(piece) for piece in values.split(sizes)])
    assert torch.equal(whole(values), pieces)


def test_a_share_p_is_dropped_and_the_mean_stays():
    dropped = ReproducibleDropout(0.25, seed=0)(torch.ones(100_000))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert dropped.unique().tolist() == [0, pytest.approx(4 / 3)]


def test_evaluation_and_p_0_change_nothing_and_draw_nothing():
    values, layer = torch.randn(4, 4), ReproducibleDropout(0.5, seed=1)
    state = layer.generator.get_state()
    assert layer.eval()(values) is values
    assert torch.equal(layer.generator.get_state(), state)
    assert ReproducibleDropout(0.0, seed=1)(values) is values


def test_saving_loading_and_copying_go_on_where_it_was():
    layer = ReproducibleDropout(0.5, seed=1)
    layer(torch.ones(4, 4))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded = ReproducibleDropout(0.5, seed=7)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(layer)
    expected = layer(torch.ones(4, 4))
    assert torch.equal(loaded(torch.ones(4, 4)), expected)
    assert torch.equal(copied(torch.ones(4, 4)), expected)


def test_replicas_would_share_the_generator_and_are_refused_in_training():
    devices = get_devices(2)
    model = nn.Sequential(nn.Linear(4, 4), ReproducibleDropout(0.5, seed=1)).to(devices[0].device)
    parallel, rows = DataParallel(model, devices), torch.randn(4, 4, device=devices[0].device)
    with pytest.raises(RuntimeError, match=r"use nn.Dropout in DataParallel, or a Pipeline"):
        parallel(rows)
    halves = [model.eval()(half) for half in rows.chunk(2)]  # a whole batch may round otherwise
    assert torch.equal(parallel(rows), torch.cat(halves))


def test_another_default_type_draws_the_same():
    values, other = torch.ones(8, 16), ReproducibleDropout(0.5, seed=1)
    torch.set_default_dtype(torch.float64)
    try:
        dropped = other(values)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(dropped, ReproducibleDropout(0.5, seed=1)(values))


VALUES = {
    "empty": torch.ones(0, 4),
    "a number": torch.ones(()),
    "half": torch.ones(64, 4, dtype=torch.float16),
    "bfloat16": torch.ones(64, 4, dtype=torch.bfloat16),
    "strided": torch.ones(4, 64).t(),
    "channels last": torch.ones(4, 3, 5, 5).to(memory_format=torch.channels_last),
    "not a number": torch.full((64, 4), float("inf")),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_what_it_gives_is_of_the_kind_that_torch_s_gives(values):
    layer, torchs = ReproducibleDropout(0.5, seed=3), nn.Dropout(0.5)
    found, expected = layer(values), torchs(values)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.stride() == expected.stride()
    rows = values.detach().clone().requires_grad_()
    [gradient] = torch.autograd.grad(layer(rows).real.sum(), rows)
    assert set(gradient.abs().flatten().tolist()) <= {0, 2}


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_share_outside_0_to_1_is_refused(p):
    with pytest.raises(ValueError, match=r"p is from 0 to below 1; got"):
        ReproducibleDropout(p, seed=0)
