"""Counts worked out by hand, files that can be loaded again, sparse layers equal to dense ones."""

import copy
import warnings

import pytest
import torch
from pruned import normed_net, pruned, tied_net
from torch import nn
from torchvision.models import resnet50

from mpcourse.pruning import (
    SparseLinear,
    bytes_in_formats,
    channel_links,
    channel_norms,
    latencies,
    layer_masks,
    load_format,
    make_permanent,
    multiply_adds,
    remove_channels,
    to_sparse,
)
from mpcourse.pruning.formats import FORMATS, in_format
from mpcourse.training.nets import conv_net, lenet_300_100

IMAGE = torch.randn(1, 1, 28, 28)


def with_zeros(sparsity: float, model: nn.Module | None = None) -> nn.Module:
    model = pruned(lenet_300_100() if model is None else model, sparsity)
    make_permanent(model)
    return model


def test_multiply_adds_are_those_worked_out_by_hand():
    dense = 26 * 26 * 32 * 9 + 24 * 24 * 64 * 32 * 9 + 576 * 100 + 100 * 10
    assert multiply_adds(conv_net(), IMAGE) == (dense, dense)
    assert multiply_adds(normed_net(), IMAGE.expand(3, 1, 28, 28))[0] == 3 * dense
    assert multiply_adds(lenet_300_100(), IMAGE) == (266_200, 266_200)
    assert multiply_adds(nn.Linear(8, 4), torch.randn(3, 8)) == (96, 96)


def test_what_torch_s_counter_does_not_know_is_counted_in_steps_or_refused():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    tokens = torch.randn(2, 3, 8)
    projections, scores = 2 * 3 * (4 * 8 * 8 + 2 * 8 * 16), 2 * 3 * 3 * 8
    assert multiply_adds(encoder, tokens)[0] == projections + 2 * scores
    with pytest.raises(AssertionError, match="embedding dimension"):
        multiply_adds(encoder, torch.randn(2, 3, 9))
    assert torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ValueError, match=r"recurrent layers are not counted: \['0'\]"):
        multiply_adds(nn.Sequential(nn.LSTM(4, 4), nn.Linear(4, 4)), tokens)


def test_zeros_do_not_lower_the_count_of_dense_kernels():
    model = conv_net()
    model.conv1.weight.data[:16] = 0
    model.fc1.weight.data[:, :100] = 0
    dense = multiply_adds(conv_net(), IMAGE)[0]
    saved = 26 * 26 * 16 * 9 + 100 * 100
    assert multiply_adds(model, IMAGE) == (dense, dense - saved)

    model = conv_net()
    masks = layer_masks(channel_norms(model, layers=channel_links(model)), 0.5)
    expected = 26 * 26 * 16 * 9 + 24 * 24 * 32 * 16 * 9 + 288 * 50 + 50 * 10
    assert multiply_adds(remove_channels(model, masks), IMAGE) == (expected, expected)


def test_resnet50_takes_its_known_4_1_billion():
    dense, useful = multiply_adds(resnet50(), torch.randn(1, 3, 224, 224))
    assert 4.0e9 < useful <= dense < 4.2e9


def test_counting_leaves_no_trace():
    model = normed_net().train()
    model.bn1.eval()
    before = copy.deepcopy(model.state_dict())
    multiply_adds(model, IMAGE)
    assert (model.training, model.bn1.training, model.bn2.training) == (True, False, True)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_zeros_make_no_dense_file_smaller_and_masks_make_it_larger():
    dense, zeros, masked = lenet_300_100(), with_zeros(0.9), lenet_300_100()
    pruned(masked)
    sizes = [bytes_in_formats(model) for model in (dense, zeros, masked)]
    assert abs(sizes[0]["dense"] - sizes[1]["dense"]) < 100
    assert sizes[2]["as it is"] > 1.9 * sizes[0]["as it is"]
    assert abs(sizes[2]["dense"] - sizes[0]["dense"]) < 100
    assert sizes[1]["gzip"] < 0.3 * sizes[1]["dense"]
    assert list(sizes[0]) == ["as it is", *FORMATS]


@pytest.mark.parametrize(
    ("sparsity", "name", "pays"),
    [
        (0.4, "CSR", False),
        (0.6, "CSR", True),
        (0.7, "COO", False),
        (0.9, "COO", True),
        (0.0, "bit mask", False),
        (0.1, "bit mask", True),
    ],
)
def test_each_sparse_format_pays_from_its_own_sparsity_on(sparsity, name, pays):
    model = with_zeros(sparsity)
    assert (len(in_format(model, name)) < len(in_format(model, "dense"))) == pays


def diverged_net() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3, bias=False))
    model[0].weight.data[0, 0] = torch.nan
    return model


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "make",
    [
        tied_net,
        diverged_net,
        lambda: with_zeros(0.8, normed_net()),
        lambda: nn.Linear(5, 3).bfloat16(),
        lambda: nn.Conv3d(4, 6, (1, 2, 3), groups=2).double(),
        lambda: nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 1).requires_grad_(False)),
        lambda: nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last),
    ],
)
def test_the_file_of_any_model_holds_its_state(make, name):
    model, fresh = make(), make()
    trained = [parameter.requires_grad for parameter in fresh.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_format(fresh, in_format(model, name))
    found, expected = dict(fresh.state_dict()), dict(model.state_dict())
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert [parameter.requires_grad for parameter in fresh.parameters()] == trained
    assert len(list(fresh.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_with_as_many_numbers_in_another_shape_is_refused(name):
    content = in_format(nn.Linear(4, 6, bias=False), name)
    with pytest.raises(ValueError, match=r"weight has the shape \(6, 4\), not \(4, 6\)"):
        load_format(nn.Linear(6, 4, bias=False), content)


def test_a_file_that_does_not_fit_is_refused_and_changes_nothing():
    model, content = lenet_300_100(), in_format(conv_net(), "CSR")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"the file is another model's: it has conv1\.weight"):
        load_format(model, content)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    content = in_format(model, "dense")
    pruned(model, 0.5)
    with pytest.raises(ValueError, match="make_permanent"):
        load_format(model, content)
    with pytest.raises(ValueError, match="formats are dense, gzip, COO, CSR, bit mask; got 'zip'"):
        in_format(model, "zip")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 6), (6,), (0, 6)])
def test_a_sparse_layer_computes_what_the_dense_one_does(bias, shape):
    layer = nn.Linear(6, 5, bias=bias)
    layer.weight.data[layer.weight.abs() < 0.2] = 0
    rows = torch.randn(shape)
    torch.testing.assert_close(SparseLinear(layer)(rows), layer(rows))


def test_a_sparse_model_computes_what_the_dense_one_does():
    for model in (with_zeros(0.9), with_zeros(0.9, conv_net())):
        sparse = to_sparse(model)
        torch.testing.assert_close(sparse(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)
        assert isinstance(sparse.fc1, SparseLinear)
        assert isinstance(model.fc1, nn.Linear)
    masked = pruned(lenet_300_100())
    torch.testing.assert_close(to_sparse(masked)(IMAGE), masked(IMAGE))
    assert isinstance(to_sparse(nn.Linear(2, 2)), SparseLinear)
    with pytest.raises(ValueError, match="Sequential has no Linear layer to make sparse"):
        to_sparse(nn.Sequential(nn.Conv2d(1, 1, 1)))


class Doubled(nn.Linear):
    def forward(self, rows):
        return 2 * super().forward(rows)


def test_layers_with_a_forward_of_their_own_stay_dense():
    model, rows = nn.Sequential(Doubled(4, 4), nn.Linear(4, 2)), torch.randn(3, 4)
    torch.testing.assert_close(to_sparse(model)(rows), model(rows))


def test_latencies_are_of_forwards_in_evaluation_mode_without_gradients():
    seen = []

    class Spy(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            seen.append((self.training, torch.is_grad_enabled()))
            return super().forward(rows)

    models = {"one": Spy(3, 3), "two": Spy(3, 3).eval()}
    times = latencies(models, torch.randn(2, 3), repeats=2)
    assert seen == [(False, False)] * 8
    assert models["one"].training
    assert list(times) == ["one", "two"]
    assert all(timing.repeats == 2 and timing.median_s > 0 for timing in times.values())
