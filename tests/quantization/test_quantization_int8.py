"""int8 layers: exact products, models that come back from files, errors before any change."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from pruned import normed_net, pruned_net
from torch import nn

from mpcourse.pruning import count_nonzeros, masks_of, to_sparse
from mpcourse.pruning.formats import saved
from mpcourse.quantization import (
    QuantizedLinear,
    calibrate,
    int8_matmul,
    prepare_qat,
    quantize_tensor,
    to_int8,
)
from mpcourse.quantization import product as product_module
from mpcourse.training.loop import evaluate
from mpcourse.training.nets import conv_net, lenet_300_100

ONES = quantize_tensor(torch.ones(1, 2))
IMAGES = torch.randn(16, 1, 28, 28)


def random_int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


SHAPES = [(1, 784, 300), (17, 100, 10), (64, 3, 5), (0, 8, 8), (5, 1, 1), (2, 4096, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_product_is_that_of_int64(shape: tuple[int, int, int]):
    m, k, n = shape
    a, b = random_int8(m, k), random_int8(n, k).t()
    assert int8_matmul(a, b).dtype == torch.int32
    assert torch.equal(int8_matmul(a, b).long(), a.long() @ b.long())
    extreme = torch.full((m, k), -128, dtype=torch.int8)
    assert torch.equal(int8_matmul(extreme, b).long(), extreme.long() @ b.long())


class OnGpu(torch.Tensor):
    """Numbers of the host that say that they are on a GPU."""

    device = torch.device("cuda", 0)


@pytest.mark.parametrize("shape", [*SHAPES, (3, 0, 5), (5, 3, 0)], ids=str)
def test_a_gpu_is_given_matrices_padded_with_zeros(shape: tuple[int, int, int], monkeypatch):
    m, k, n = shape
    seen = []
    lefts = random_int8(m, k), random_int8(k, m).t()
    rights = random_int8(k, n), random_int8(n, k).t()

    def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        seen.append((*left.shape, right.shape[1]))
        assert left.stride(1) == right.stride(0) == 1  # rows and columns in one piece
        return left.int() @ right.int()

    monkeypatch.setattr(torch, "_int_mm", multiply)
    for a, b in itertools.product(lefts, rights):
        found = int8_matmul(a.as_subclass(OnGpu), b.as_subclass(OnGpu))
        assert torch.equal(found.as_subclass(torch.Tensor).long(), a.long() @ b.long())
    for rows, inner, columns in seen:
        assert rows == m + 17  # the same number more for any: a traced program keeps it
        assert inner % 8 == columns % 8 == 0 < min(inner, columns)


def test_what_gpus_multiply_is_exported_for_any_number_of_rows():
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", random_int8(5, 12))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return product_module._padded_matmul(rows, self.weight.t())

    model, batch = Product().eval(), random_int8(40, 12)
    expected = model(batch)
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(model, (batch,), dynamic_shapes=dynamic).module()
    for rows in (2, 17, 40):
        assert torch.equal(exported(batch[:rows]), expected[:rows])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_a_gpu_gives_the_same_product(shape: tuple[int, int, int]):
    a, b = random_int8(*shape[:2]), random_int8(*shape[:0:-1]).t()
    found = int8_matmul(a.cuda(), b.cuda()).cpu()
    assert torch.equal(found, int8_matmul(a, b))


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
def test_the_layer_computes_what_its_integers_mean(static: bool, bias: bool, per_channel: bool):
    """The oracle: the same layer in float64, on dequantized inputs and weights."""
    layer, rows = nn.Linear(50, 7, bias=bias), torch.rand(9, 50) * 3 - 1
    ranges = calibrate(layer, [rows]) if static else None
    quantized = to_int8(layer, ranges, per_channel=per_channel)
    scale, zero_point = quantized.input_qparams(rows)
    integers = ((rows / scale).round() + zero_point).clamp(-128, 127)
    inputs = (integers - zero_point).double() * scale
    weight = quantized.weight.double() * quantized.weight_scale[:, None].double()
    expected = inputs @ weight.t() + (layer.bias.double() if bias else 0)
    torch.testing.assert_close(quantized(rows).double(), expected, rtol=1e-5, atol=1e-5)
    assert (quantized(rows) - layer(rows)).abs().max() < 0.05
    assert len(set(quantized.weight_scale.tolist())) == (7 if per_channel else 1)


def test_it_really_multiplies_in_int8(monkeypatch):
    dtypes = []
    real = torch._int_mm

    def spy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        dtypes.append((a.dtype, b.dtype))
        return real(a, b)

    model = to_int8(lenet_300_100())
    monkeypatch.setattr(torch, "_int_mm", spy)
    monkeypatch.setattr(nn.functional, "linear", None)
    model(IMAGES)
    assert dtypes == [(torch.int8, torch.int8)] * 3


def test_shapes_and_floats_of_the_inputs_come_back():
    layer = to_int8(nn.Linear(4, 3))
    for shape in [(4,), (0, 4), (2, 4), (2, 5, 4)]:
        assert layer(torch.randn(shape)).shape == (*shape[:-1], 3)
    assert layer(torch.randn(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert layer(torch.randn(2, 4).double()).dtype == torch.float64
    assert not layer(torch.randn(2, 4, requires_grad=True)).requires_grad
    assert list(layer.parameters()) == []
    assert layer(torch.zeros(1, 4)).tolist() == [layer.bias.tolist()]
    with pytest.raises(ValueError, match=r"got \(2, 5\) and \(4, 3\)"):
        layer(torch.randn(2, 5))
    for kind in (torch.uint8, torch.int64):  # pictures that nobody has scaled
        with pytest.raises(TypeError, match=f"rows are floats, as for nn.Linear; got {kind}"):
            layer(torch.ones(2, 4, dtype=kind))


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_diverged_row_stays_one_and_no_other_changes(static: bool, wrong: float):
    layer, rows = nn.Linear(4, 3), torch.rand(3, 2, 4)
    quantized = to_int8(layer, {"": (0.0, 1.0)} if static else None)
    expected = quantized(rows)
    rows[1, 0, 2] = wrong
    found = quantized(rows)
    assert not found[1, 0].isfinite().any()
    found[1, 0] = expected[1, 0]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_an_int8_layer_moved_to_another_type_is_as_near_as_one_made_in_it(kind, static: bool):
    layer, rows = nn.Linear(512, 8), torch.randn(16, 512)
    ranges = calibrate(layer, [rows]) if static else None
    expected = layer(rows)
    for quantized in (to_int8(layer, ranges).to(kind), to_int8(layer.to(kind), ranges)):
        found = quantized(rows.to(kind))
        assert found.dtype == kind
        assert (found.float() - expected).abs().max() < 0.05


@pytest.mark.parametrize("change", [to_int8, prepare_qat, to_sparse])
@pytest.mark.parametrize("gradients", [True, False])
def test_layers_in_torch_s_encoder_are_called_and_not_read_past(change, gradients: bool):
    """torch has a faster way without gradients, which multiplies with `linear1.weight` itself."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    model, rows = change(encoder), torch.randn(2, 3, 8)
    model(rows)
    calls = []
    for layer in model.layers:
        layer.linear1.register_forward_hook(lambda *_: calls.append(1))
    with torch.set_grad_enabled(gradients):
        found, expected = model.eval()(rows), encoder.eval()(rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1)
    assert calls == [1, 1]
    for layer in model.layers:
        layer.linear1._forward_hooks.clear()  # with one torch goes the slow way anyhow
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(model(rows), found)


@pytest.mark.parametrize("change", [to_int8, prepare_qat, to_sparse])
def test_a_layer_with_hooks_is_not_replaced(change):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    handle = model[1].register_forward_pre_hook(lambda module, inputs: None)
    with pytest.raises(ValueError, match="1 would lose its forward pre hooks: remove them first"):
        change(model)
    handle.remove()
    assert type(change(model)[1]) is not nn.Linear


def test_the_weights_are_a_quarter_and_pruned_ones_stay_zero():
    model = pruned_net()
    before = count_nonzeros(model)
    quantized = to_int8(model, calibrate(model, [IMAGES]))
    layers = {name: quantized.get_submodule(name).weight for name in before}
    assert all(weight.dtype == torch.int8 for weight in layers.values())
    for name, weight in layers.items():
        assert weight[masks_of(model)[name].logical_not()].count_nonzero() == 0
    plain = len(saved(lenet_300_100().state_dict()))
    assert plain / len(saved(quantized.state_dict())) > 3.8  # scales, sums and biases are added
    assert masks_of(model).keys() == before.keys()  # the model itself is as before


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("make", [lenet_300_100, normed_net])
def test_saving_loading_and_copying_give_the_same_outputs(make, static: bool):
    model = make().eval()
    quantized = to_int8(model, calibrate(model, [IMAGES]) if static else None)
    expected = quantized(IMAGES)
    fresh = to_int8(make().eval(), calibrate(model, [IMAGES]) if static else None)
    file = io.BytesIO(saved(quantized.state_dict()))
    fresh.load_state_dict(torch.load(file, weights_only=True))
    pickled = pickle.loads(pickle.dumps(quantized))
    for twin in (fresh, copy.deepcopy(quantized), copy.deepcopy(fresh), pickled):
        assert torch.equal(twin(IMAGES), expected)
    for other in (model, to_int8(model, None if static else calibrate(model, [IMAGES]))):
        with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
            fresh.load_state_dict(other.state_dict())


def test_evaluation_brings_the_inputs_to_a_net_without_parameters():
    model, seen = to_int8(nn.Linear(4, 3)).to("meta"), []
    model.forward = lambda rows: seen.append(rows.device.type) or torch.zeros(len(rows), 3)
    evaluate(model, [(torch.ones(2, 4), torch.tensor([0, 1]))], nn.CrossEntropyLoss())
    assert seen == ["meta"]


def test_a_layer_in_two_places_is_replaced_in_both_and_its_subclasses_in_none():
    layer = nn.Linear(5, 5)
    twice = to_int8(nn.Sequential(layer, nn.ReLU(), layer))
    assert twice[0] is twice[2]
    assert isinstance(twice[0], QuantizedLinear)
    attention = nn.MultiheadAttention(8, 2)  # its out_proj is a subclass of Linear
    model = nn.ModuleDict({"attention": attention, "head": nn.Linear(8, 2)})
    quantized = to_int8(model)
    rows = torch.randn(4, 1, 8)
    quantized["attention"](rows, rows, rows)
    assert isinstance(quantized["head"], QuantizedLinear)


def test_calibration_sees_all_batches_and_leaves_no_trace():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout(), nn.Linear(2, 1))
    model[1].eval()
    batches = [torch.tensor([[-3.0, 1.0]]), (torch.tensor([[0.0, 7.0]]), torch.tensor([1]))]
    ranges = calibrate(model, batches)
    assert ranges["0"] == (-3.0, 7.0)
    assert ranges["3"][0] >= 0  # after a ReLU, without dropout
    assert [layer.training for layer in model] == [True, False, True, True]
    assert not any(layer._forward_pre_hooks for layer in model)
    with pytest.raises(ValueError, match="NaN or infinite"):
        calibrate(model, [torch.full((1, 2), torch.nan)])
    assert not any(layer._forward_pre_hooks for layer in model)


LONG = random_int8(1, 131_072)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.used(rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: int8_matmul(torch.ones(2, 2), LONG), "both .* int8; got torch.float32 and"),
        (lambda: int8_matmul(LONG, LONG), r"multiply; got \(1, 131072\) and \(1, 131072\)"),
        (lambda: int8_matmul(LONG[0], LONG), r"got \(131072,\)"),
        (lambda: int8_matmul(LONG, LONG.t()), "sums of 131,071 products"),
        (lambda: to_int8(nn.ReLU()), "no Linear layer"),
        (lambda: to_int8(nn.Linear(2, 1).apply(lambda m: m.weight.data.fill_(torch.nan))), "NaN"),
        (lambda: to_int8(conv_net(), {"fc1": (0, 1)}), r"ranges has \['fc1'\], .*'fc1', 'fc2'"),
        (lambda: to_int8(nn.Linear(2, 1), {"": (1.0, 0.0)}), r"smaller one first; got \(1.0, 0.0"),
        (lambda: to_int8(nn.Linear(2, 1), {"": (0.0, torch.inf)}), "two finite numbers"),
        (lambda: calibrate(nn.Linear(2, 1), []), "no batch has reached"),
        (lambda: calibrate(Half(), [torch.ones(1, 2)]), "no batch has reached unused"),
        (lambda: calibrate(nn.Conv2d(1, 1, 1), [IMAGES]), "Conv2d has no Linear layer"),
        (lambda: QuantizedLinear(quantize_tensor(torch.ones(1, 65_537))), "at most 65,536 inputs"),
        (
            lambda: QuantizedLinear(ONES._replace(zero_point=torch.tensor(1))),
            "the weight is quantized symmetrically: its zero_point is 0",
        ),
    ],
)
def test_what_cannot_be_multiplied_or_quantized_is_named(call, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
