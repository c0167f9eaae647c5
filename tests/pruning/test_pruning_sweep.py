"""A sweep over sparsities masks copies, in order, and leaves the model as it was."""

import copy

import pytest
import torch

from mpcourse.pruning import count_nonzeros, global_masks, magnitude, masks_of, over_sparsities
from mpcourse.training.nets import lenet_300_100


def left(model) -> int:
    return sum(kept for kept, _ in count_nonzeros(model).values())


def test_each_copy_has_its_own_sparsity_and_the_order_stays():
    model = lenet_300_100()
    found = over_sparsities(model, magnitude(model), [0.9, 0.0, 0.5], left)
    assert found == {0.9: 26_620, 0.0: 266_200, 0.5: 133_100}
    assert list(found) == [0.9, 0.0, 0.5]


def test_the_copies_are_masked_by_one_threshold_and_the_model_is_not():
    model = lenet_300_100()
    before, scores = copy.deepcopy(model.state_dict()), magnitude(model)
    masks = over_sparsities(model, scores, [0.8], masks_of)[0.8]
    torch.testing.assert_close(masks, global_masks(scores, 0.8))
    assert masks_of(model) == {}
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_a_sparsity_out_of_range_is_refused():
    model = lenet_300_100()
    with pytest.raises(ValueError, match=r"sparsity is a number from 0 to 1; got 1\.5"):
        over_sparsities(model, magnitude(model), [1.5], left)
