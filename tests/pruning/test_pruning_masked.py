"""Masks on a model: torch's own, copied, removed, swept; bad ones change nothing."""

import copy
import io
import pickle

import pytest
import torch
from pruned import pruned, pruned_net, tied_net
from torch import nn
from torch.nn.utils import prune

from mpcourse.data_parallel.replicas import DataParallel
from mpcourse.devices.devices import get_devices
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pruning import (
    apply_masks,
    count_nonzeros,
    in_format,
    load_format,
    make_permanent,
    masks_of,
    update_masks,
)
from mpcourse.pruning.formats import FORMATS
from mpcourse.pruning.masked import permanent_copy
from mpcourse.sparse_training import zero_pruned
from mpcourse.splitting.splits import split_sequential
from mpcourse.training.nets import lenet_300_100

IMAGES = torch.randn(5, 1, 28, 28)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(4, 3, bias=False), (2, 4)),
        (lambda: nn.Linear(4, 3).double(), (0, 4)),
        (lambda: nn.Linear(4, 3).bfloat16(), (4,)),
        (lambda: nn.Linear(4, 3).requires_grad_(False), (2, 5, 4)),
        (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 5)),
        (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
        (lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), (2, 4, 5, 5)),
        (lambda: nn.Conv3d(4, 6, 1), (2, 4, 3, 3, 3)),
    ],
)
def test_a_masked_layer_does_all_that_torch_s_does(make, shape):
    ours = make()
    theirs, weight = copy.deepcopy(ours), ours.weight
    rows = torch.randn(shape, dtype=weight.dtype)
    mask = (torch.rand(weight.shape[::-1]) > 0.5).permute(*reversed(range(weight.dim())))
    apply_masks(ours, {"": mask})
    prune.custom_from_mask(theirs, "weight", mask)
    for layer in (ours, theirs):
        calls = []
        with layer.register_forward_hook(lambda *_, calls=calls: calls.append(1)):
            output = layer(rows) + layer(2 * rows)  # used twice
        assert calls == [1, 1]
        if weight.requires_grad:
            output.sum().backward()
    assert torch.equal(ours(rows), theirs(rows))
    torch.testing.assert_close(ours.weight_orig.grad, theirs.weight_orig.grad)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    file, loaded = io.BytesIO(), make()
    torch.save(theirs.state_dict(), file)
    apply_masks(loaded, {"": torch.ones_like(mask)})
    loaded.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for twin in (loaded, pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert torch.equal(twin(rows), theirs(rows))
        assert twin.weight_orig.requires_grad == weight.requires_grad
    make_permanent(ours)
    prune.remove(theirs, "weight")
    assert ours.weight is weight
    assert torch.equal(ours.weight, theirs.weight)


def test_masks_stay_on_a_model_that_is_moved_to_another_type():
    model = pruned_net()
    before = masks_of(model)
    with torch.inference_mode():
        model(IMAGES)
    for kind in (torch.bfloat16, torch.float64):
        assert model.to(kind)(IMAGES.to(kind)).dtype == kind
        torch.testing.assert_close(masks_of(model), before)
    make_permanent(model)
    assert not model.fc1.weight[~before["fc1"]].any()


def test_a_bias_that_torch_has_pruned_stays_so():
    model = pruned_net()
    prune.l1_unstructured(model.fc1, "bias", amount=0.5)
    expected = model(IMAGES)
    make_permanent(model)
    assert torch.equal(model(IMAGES), expected)
    assert "fc1.bias_mask" in model.state_dict()


def test_parameters_stay_the_same_objects_so_an_optimizer_goes_on():
    model = lenet_300_100()
    weight = model.fc1.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    pruned(model)
    assert model.fc1.weight_orig is weight
    for _ in range(3):
        optimizer.zero_grad()
        model(IMAGES).square().sum().backward()
        assert not weight.grad[~masks_of(model)["fc1"]].any()
        optimizer.step()
    assert count_nonzeros(model)["fc1"][0] == int(masks_of(model)["fc1"].sum())
    make_permanent(model)
    assert model.fc1.weight is weight


def test_torch_s_masked_model_cannot_be_copied_after_a_forward_and_ours_can():
    theirs = lenet_300_100()
    prune.l1_unstructured(theirs.fc1, "weight", amount=0.5)
    theirs(IMAGES)
    with pytest.raises(RuntimeError, match="support the deepcopy protocol"):
        copy.deepcopy(theirs)
    assert torch.equal(permanent_copy(theirs)(IMAGES), theirs(IMAGES))  # which needs a copy, too
    ours = pruned_net()
    before = copy.deepcopy(ours)
    output = ours(IMAGES)
    after = copy.deepcopy(ours)
    output.sum().backward()  # the copy took nothing from the graph
    assert ours.fc1.weight_orig.grad is not None
    for twin in (before, after, copy.deepcopy(after)):
        assert torch.equal(twin(IMAGES), output)
    make_permanent(after)  # the copies are independent
    assert prune.is_pruned(ours)
    with pytest.raises(RuntimeError):
        ours(torch.randn(2, 5))
    assert torch.equal(copy.deepcopy(ours)(IMAGES), output)  # also after a forward that failed


def test_a_permanent_model_is_an_ordinary_one_with_zeros():
    plain = lenet_300_100()
    model = pruned(copy.deepcopy(plain))
    output = model(IMAGES)
    make_permanent(model)
    assert torch.equal(model(IMAGES), output)
    assert not prune.is_pruned(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()]
    plain.load_state_dict(model.state_dict())
    assert torch.equal(copy.deepcopy(plain)(IMAGES), output)
    pruned(model)  # and it can be pruned again
    assert torch.isfinite(model(IMAGES)).all()


def test_new_masks_may_bring_weights_back():
    model = nn.Sequential(nn.Linear(3, 1, bias=False))
    model[0].weight.data = torch.tensor([[1.0, 2, 3]])
    apply_masks(model, {"0": torch.tensor([[False, True, True]])})
    update_masks(model, {"0": torch.tensor([[True, False, True]])})
    assert model[0].weight.tolist() == [[1, 0, 3]]  # at once, not after the next forward
    assert model(torch.ones(1, 3)).item() == 4
    make_permanent(model)
    assert list(model.state_dict()) == ["0.weight"]  # a layer without a bias stays one


def test_a_masked_model_runs_replicated_and_in_a_pipeline():
    devices = get_devices(2)
    home = devices[0].device
    model, images = pruned_net().double().to(home), IMAGES.double().to(home)
    targets = torch.arange(5, device=home)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(nn.functional.cross_entropy(model(images), targets), parameters)
    parallel = DataParallel(model, devices)
    torch.testing.assert_close(parallel(images), model(images))
    pipeline = Pipeline(split_sequential(model, 2), devices, num_microbatches=2)
    pipeline.step(images, targets, nn.CrossEntropyLoss())
    torch.testing.assert_close([p.grad for p in parameters], list(expected))


# Bad masks: each is refused before the first layer has changed

WHOLE = torch.ones(300, 784, dtype=torch.bool)
BAD_MASKS = [
    ({"relu1": WHOLE}, "'relu1' is a ReLU, without a weight to prune"),
    ({"fc7": WHOLE}, "the model has no layer 'fc7'"),
    ({"fc3": torch.zeros(10, 100)}, "the mask of fc3 prunes all of its 1,000 weights"),
    ({"fc3": torch.ones(100, 10)}, r"shape \(10, 100\); a mask of shape \(100, 10\) does not fit"),
    ({"fc3": torch.full((10, 100), torch.nan)}, "the mask of fc3 has values other than 0 and 1"),
]


@pytest.mark.parametrize(("masks", "problem"), BAD_MASKS)
def test_a_bad_mask_changes_nothing(masks, problem):
    plain, masked = lenet_300_100(), pruned_net()
    for model, function in [(plain, apply_masks), (masked, update_masks)]:
        before = state_of(model)
        with pytest.raises(ValueError, match=problem):
            function(model, {"fc1": WHOLE, **masks})
        assert list(model.state_dict()) == list(before)
        torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)


def test_a_model_already_pruned_is_refused():
    model = lenet_300_100()
    apply_masks(model, {"fc2": torch.ones(100, 300)})
    before = state_of(model)
    with pytest.raises(ValueError, match="fc2 is pruned already: use update_masks"):
        pruned(model)
    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)
    prune.remove(model.fc2, "weight")
    prune.l1_unstructured(model.fc2, "bias", amount=0.5)  # by torch, and another tensor
    with pytest.raises(ValueError, match="fc2 is pruned already"):
        pruned(model)


@pytest.mark.parametrize(
    ("layer", "name", "problem"),
    [
        (tied_net(), "0.0", r"also 0\.1\.weight"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "0", "computed from other"),
        (nn.utils.spectral_norm(nn.Linear(4, 4)), "0", "computed from other parameters"),
        (nn.MultiheadAttention(4, 1), "0.out_proj", "read by the module that it lies in"),
    ],
)
def test_a_weight_that_is_not_a_layer_s_own_is_refused(layer, name, problem):
    model = nn.Sequential(layer, nn.Linear(4, 4))
    before = list(model.state_dict())
    for change in (apply_masks, zero_pruned):
        with pytest.raises(ValueError, match=f"the weight of {name} is {problem}.*: it takes no"):
            change(model, {"1": torch.eye(4), name: torch.eye(4)})
    assert list(model.state_dict()) == before
    for form in FORMATS:  # it can be stored all the same
        load_format(model, in_format(model, form))


def test_masks_that_are_not_there_are_neither_applied_updated_nor_removed():
    with pytest.raises(ValueError, match="masks is empty"):
        apply_masks(lenet_300_100(), {})
    with pytest.raises(ValueError, match="fc1 has no mask to update: call apply_masks first"):
        update_masks(lenet_300_100(), {"fc1": WHOLE})
    with pytest.raises(ValueError, match="no masks to make permanent"):
        make_permanent(lenet_300_100())
