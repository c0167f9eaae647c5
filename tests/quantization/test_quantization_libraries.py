"""torchao: the same answers to within a step; absence is a sentence."""

import sys
import types

import pytest
import torch
from pruned import pruned_net
from torch import nn

from mpcourse.compilation import by_export
from mpcourse.pruning.formats import saved
from mpcourse.quantization import (
    TorchaoMissing,
    to_int8,
    to_int8_by_torchao,
)
from mpcourse.training.nets import lenet_300_100

IMAGES = torch.randn(16, 1, 28, 28)


def torchao_problem() -> str:
    try:
        to_int8_by_torchao(nn.Linear(2, 2))
    except TorchaoMissing as error:
        return str(error)
    return ""


needs_torchao = pytest.mark.skipif(bool(torchao_problem()), reason=torchao_problem())


@needs_torchao
def test_torchao_s_model_is_as_small_and_as_near_as_ours(capfd, recwarn):
    model = pruned_net()
    expected = model(IMAGES)
    theirs = to_int8_by_torchao(model)
    assert (theirs(IMAGES) - expected).abs().max() < 0.03 * expected.abs().max()
    assert len(saved(theirs.state_dict())) < 1.05 * len(saved(to_int8(model).state_dict()))
    assert torch.equal(model(IMAGES), expected)
    assert capfd.readouterr().err == ""
    assert [str(each.message) for each in recwarn] == []


@needs_torchao
def test_torchao_s_weights_are_ours():
    model = lenet_300_100()
    theirs, ours = to_int8_by_torchao(model), to_int8(model)
    scale = ours.fc1.weight_scale[:, None]
    mean = theirs.fc1.weight.original_weight_tensor.dequantize()
    assert (mean - model.fc1.weight).abs().max() <= 0.501 * scale.max()
    assert ((mean - ours.fc1.weight * scale).abs() <= 1.01 * scale).all()


@needs_torchao
def test_torchao_s_model_is_exported_too():
    model = to_int8_by_torchao(pruned_net())
    torch.testing.assert_close(by_export(model, IMAGES).call(IMAGES[:5]), model(IMAGES[:5]))


def test_where_torchao_is_absent_a_sentence_says_how_to_get_it(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(TorchaoMissing, match=r"torchao is not installed; .* pip install .torchao>"):
        to_int8_by_torchao(lenet_300_100())


@pytest.mark.parametrize("error", [ImportError("cannot import name 'X'"), OSError("so")])
def test_a_torchao_for_another_torch_is_named(monkeypatch, error: Exception):
    def fail(name: str) -> types.ModuleType:
        raise error

    monkeypatch.setattr("mpcourse.quantization.library.importlib.import_module", fail)
    with pytest.raises(TorchaoMissing, match=f"does not go with torch .*{error}.*pip install"):
        to_int8_by_torchao(lenet_300_100())


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(ValueError, match="Conv2d has no Linear layer"):
        to_int8_by_torchao(nn.Conv2d(1, 1, 1))
