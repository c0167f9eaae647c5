"""torchao, as page `quantization` types it: the same answers to within a step."""

import copy

import pytest
import torch
from pruned import pruned_net
from torch import nn

from mpcourse.pruning.formats import saved
from mpcourse.pruning.masked import permanent_copy
from mpcourse.quantization import to_int8
from mpcourse.training.nets import lenet_300_100

torchao = pytest.importorskip("torchao.quantization", exc_type=ImportError)
IMAGES = torch.randn(16, 1, 28, 28)


def by_torchao(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    torchao.quantize_(model, torchao.Int8DynamicActivationInt8WeightConfig())  # in place
    return model


def test_torchao_s_model_is_as_small_and_as_near_as_ours():
    model = permanent_copy(pruned_net())
    expected = model(IMAGES)
    theirs = by_torchao(model)
    assert (theirs(IMAGES) - expected).abs().max() < 0.03 * expected.abs().max()
    assert len(saved(theirs.state_dict())) < 1.05 * len(saved(to_int8(model).state_dict()))


def test_torchao_s_weights_are_ours():
    model = lenet_300_100()
    theirs, ours = by_torchao(model), to_int8(model)
    scale = ours.fc1.weight_scale[:, None]
    mean = theirs.fc1.weight.original_weight_tensor.dequantize()
    assert (mean - model.fc1.weight).abs().max() <= 0.501 * scale.max()
    assert ((mean - ours.fc1.weight * scale).abs() <= 1.01 * scale).all()


def test_torchao_s_model_is_exported_too():
    model = by_torchao(permanent_copy(pruned_net()))
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(model, (IMAGES[:2].clone(),), dynamic_shapes=dynamic).module()
    torch.testing.assert_close(exported(IMAGES[:5]), model(IMAGES[:5]))
