"""Quantization-aware training: rounds as int8 will, passes gradients on, keeps a net's zeros."""

import contextlib
import copy
import io
import itertools
import pickle

import pytest
import torch
from pruned import pruned
from torch import nn

from mpcourse.pruning import masks_of
from mpcourse.pruning.formats import saved
from mpcourse.quantization import (
    choose_qparams,
    dequantize,
    fake_quantize,
    integer_range,
    prepare_qat,
    quantize,
    to_int8,
)
from mpcourse.training.nets import lenet_300_100

IMAGES, LABELS = torch.randn(32, 1, 28, 28), torch.arange(32) % 10
LOSS = nn.CrossEntropyLoss()


def trained(model: nn.Module, steps: int = 3) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        LOSS(model(IMAGES), LABELS).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize(("bits", "symmetric"), [(8, False), (8, True), (4, False), (2, True)])
def test_values_are_those_of_quantize_and_gradients_those_of_torch(bits: int, symmetric: bool):
    values = torch.randn(400).mul(2).requires_grad_()  # some are clipped
    options = {"bits": bits, "symmetric": symmetric}
    scale, zero_point = choose_qparams(torch.tensor(-1.0), torch.tensor(2.0), **options)
    ours = fake_quantize(values, scale, zero_point, **options)
    integers = quantize(values.detach(), scale, zero_point, **options)
    assert torch.equal(ours, dequantize(integers, scale, zero_point))
    [our_gradient] = torch.autograd.grad(ours.square().sum(), values)
    theirs = torch.fake_quantize_per_tensor_affine(
        values, scale.item(), zero_point.item(), *integer_range(**options)
    )
    torch.testing.assert_close(ours, theirs)
    [their_gradient] = torch.autograd.grad(theirs.square().sum(), values)
    torch.testing.assert_close(our_gradient, their_gradient)


@pytest.mark.parametrize("bits", [8, 3])
def test_the_int8_model_computes_what_training_has_seen(bits: int):
    """A sum in another order can move a value over the edge of a step: one step is allowed."""
    ready = trained(prepare_qat(lenet_300_100(), bits=bits))
    quantized = to_int8(ready)
    largest = (2 ** (bits - 1)) - 1
    assert quantized.fc1.weight.abs().max() == largest
    difference = (quantized(IMAGES) - ready(IMAGES)).abs().max()
    step = quantized.fc3.input_scale * ready.fc3.weight.abs().max()
    assert difference < 4 * step
    first, inputs = ready.fc1, IMAGES.flatten(1)
    torch.testing.assert_close(quantized.fc1(inputs), first(inputs), rtol=1e-4, atol=1e-4)


def test_ranges_move_in_training_only():
    ready = prepare_qat(nn.Sequential(nn.Linear(2, 2)))
    rows = torch.tensor([[-1.0, 3.0]])
    ready.train()(rows)
    assert [limit.item() for limit in ready[0].input_range()] == [-1, 3]  # the first is taken whole
    ready(rows * 2)
    expected = pytest.approx([-1.1, 3.3])
    assert [limit.item() for limit in ready[0].input_range()] == expected
    ready.eval()(rows * 100)
    assert [limit.item() for limit in ready[0].input_range()] == expected


def test_the_zeros_of_a_pruned_net_stay():
    model = pruned(lenet_300_100())
    ready = trained(prepare_qat(model, bits=4))
    assert type(model.fc1) is nn.Linear
    quantized = to_int8(ready)
    for name, mask in masks_of(model).items():
        assert torch.equal(masks_of(ready)[name], mask)
        assert not quantized.get_submodule(name).weight[~mask].any()


def test_a_net_in_training_can_be_saved_loaded_and_copied():
    ready = trained(prepare_qat(lenet_300_100(), bits=4))
    state = torch.load(io.BytesIO(saved(ready.state_dict())), weights_only=True)
    fresh = prepare_qat(lenet_300_100(), bits=4).eval()
    fresh.load_state_dict(state)
    for twin in (fresh, copy.deepcopy(ready)):
        assert torch.equal(twin(IMAGES), ready(IMAGES))
        assert torch.equal(to_int8(twin)(IMAGES), to_int8(ready)(IMAGES))


def two_layers(**options) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8, **options), nn.ReLU(), nn.Linear(8, 2, **options))


ROWS = torch.randn(16, 4)
STEPS = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float64: 2**-18}
WAYS = [*itertools.product(STEPS, ["made in it", "moved to it"])]


@pytest.mark.parametrize(
    ("kind", "way"), [*WAYS, (torch.bfloat16, "autocast"), (torch.float16, "autocast")]
)
def test_a_net_in_training_computes_in_any_type_what_int8_will(kind, way: str):
    model, mixed, step = two_layers(), way == "autocast", STEPS[kind]
    ready = prepare_qat(model.to(kind) if way == "made in it" else model)
    if way == "moved to it":
        ready.to(kind)
    rows = ROWS if mixed else ROWS.to(kind)
    with torch.autocast("cpu", kind) if mixed else contextlib.nullcontext():
        ready.train()(rows)
        ready(2 * rows).float().square().sum().backward()
        found, int8 = ready.eval()(rows), to_int8(ready)(rows)
    assert found.dtype == kind
    assert all(parameter.grad.isfinite().all() for parameter in ready.parameters())
    torch.testing.assert_close(found.float(), int8.float(), rtol=0, atol=8 * step)


def test_a_net_in_training_keeps_what_is_frozen_tied_and_in_evaluation_mode():
    embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Linear(4, 4).requires_grad_(False).eval(), head)
    ready = prepare_qat(model)
    assert ready[0].weight is ready[2].weight
    assert [parameter.requires_grad for parameter in ready[1].parameters()] == [False, False]
    assert [layer.training for layer in ready] == [True, False, True]
    ready[1].train()
    tokens = torch.tensor([[1, 2]])
    ready(tokens).sum().backward()
    assert ready[0].weight.grad is not None
    assert ready[1].weight.grad is None
    twin = pickle.loads(pickle.dumps(ready.eval()))
    assert torch.equal(twin(tokens), ready(tokens))
    assert to_int8(ready)(tokens).shape == (1, 2, 7)


def test_an_empty_batch_moves_no_range_and_one_that_diverged_is_not_taken():
    ready = prepare_qat(two_layers())
    ready(ROWS)
    before = ready[0].input_range()
    assert ready(ROWS[:0]).shape == (0, 2)
    assert ready[0].input_range() == before
    ready(ROWS * torch.nan)
    with pytest.raises(ValueError, match="a range is two finite numbers"):
        to_int8(ready)


def test_what_was_not_trained_and_what_has_no_layer_is_named():
    ready = prepare_qat(lenet_300_100())
    for use in (lambda: ready.eval()(IMAGES), lambda: to_int8(ready)):
        with pytest.raises(RuntimeError, match="show it a batch in training mode"):
            use()
    with pytest.raises(ValueError, match="bits is 2 to 8"):
        prepare_qat(lenet_300_100(), bits=1)
    with pytest.raises(ValueError, match="no Linear layer"):
        prepare_qat(nn.Conv2d(1, 1, 1))
