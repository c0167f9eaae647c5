"""Scores of a network small enough to be worked out by hand."""

import pytest
import torch
from pruned import normed_net
from torch import nn
from torch.nn.utils import prune

from mpcourse.pruning import (
    Movement,
    apply_masks,
    channel_norms,
    count_nonzeros,
    gradient,
    layer_masks,
    magnitude,
    random_scores,
    snip,
    weight_of,
)
from mpcourse.training.nets import conv_net, lenet_300_100


def by_hand() -> tuple[nn.Sequential, torch.Tensor]:
    """Weights (1, -2; 3, 0), input (1, 10), loss 1/2 of the sum of squares of the outputs.

    The outputs are (1 - 20, 3 + 0) = (-19, 3); dL/dw is output x input: (-19, -190; 3, 30).
    """
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    return model, model(torch.tensor([[1.0, 10.0]])).square().sum() / 2


HAND_WORKED = [
    (magnitude, [[1, 2], [3, 0]]),
    (gradient, [[19, 190], [3, 30]]),
    (snip, [[19, 380], [9, 0]]),
    (channel_norms, [[5**0.5], [3]]),
]


@pytest.mark.parametrize(("criterion", "expected"), HAND_WORKED)
def test_scores_are_those_worked_out_by_hand(criterion, expected):
    model, loss = by_hand()
    loss.backward()
    torch.testing.assert_close(criterion(model), {"0": torch.tensor(expected).float()})
    assert not criterion(model)["0"].requires_grad


def test_movement_is_positive_where_a_weight_moves_away_from_zero():
    model, loss = by_hand()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    movement = Movement(model)
    optimizer.register_step_pre_hook(movement)
    loss.backward()
    optimizer.step()
    # -w g: the first weight, 1 with gradient -19, grows; the second, -2 with -190, shrinks
    assert movement.scores["0"].tolist() == [[19, -380], [-9, 0]]
    before = model[0].weight.detach().clone()
    optimizer.step()  # the same gradients again, at the new weights
    torch.testing.assert_close(
        movement.scores["0"], torch.tensor([[19.0, -380], [-9, 0]]) - before * model[0].weight.grad
    )


def test_random_scores_are_uniform_and_follow_the_seed():
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        found.append(random_scores(nn.Linear(784, 300))[""])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert found[0].min() >= 0
    assert abs(found[0].mean() - 0.5) < 0.01


def test_channel_norms_of_convolutions_agree_with_torch_s_choice():
    """torch's ln_structured prunes the channels with the smallest norms."""
    model = conv_net()
    masks = layer_masks(channel_norms(model, layers=["conv2"]), 0.4)
    pruned = prune.ln_structured(model.conv2, "weight", amount=0.4, n=2, dim=0)
    assert masks["conv2"].shape == (64, 1, 1, 1)
    assert torch.equal(masks["conv2"].expand_as(pruned.weight), pruned.weight_mask.bool())


def test_only_weights_of_linear_and_convolution_layers_are_scored():
    names = ["conv1", "conv2", "fc1", "fc2"]
    assert list(magnitude(normed_net())) == names
    assert list(magnitude(conv_net(), layers=["fc2", "conv1"])) == ["conv1", "fc2"]
    assert list(magnitude(conv_net(), layers="fc1")) == ["fc1"]


def test_scores_of_a_masked_model_are_those_of_what_the_forward_uses():
    model, _ = by_hand()
    apply_masks(model, {"0": torch.tensor([[True, False], [True, True]])})
    assert magnitude(model)["0"].tolist() == [[1, 0], [3, 0]]
    (model(torch.tensor([[1.0, 10.0]])).square().sum() / 2).backward()
    assert gradient(model)["0"].tolist() == [[1, 0], [3, 30]]
    with torch.no_grad():
        model[0].weight_orig.add_(1)  # as a step of an optimizer does
    assert weight_of(model[0]).tolist() == [[2, 0], [4, 1]]
    assert count_nonzeros(model) == {"0": (3, 4)}


@pytest.mark.parametrize("criterion", [gradient, snip, lambda model: Movement(model)()])
def test_scores_without_a_backward_and_of_a_frozen_layer_are_refused(criterion):
    with pytest.raises(ValueError, match=r"fc1 has no gradient: call loss.backward\(\)"):
        criterion(lenet_300_100())
    model, loss = by_hand()
    model.append(nn.Linear(2, 2).requires_grad_(False))
    loss.backward()
    with pytest.raises(ValueError, match="1 has no gradient: it is frozen"):
        criterion(model)


@pytest.mark.parametrize(
    ("model", "layers", "message"),
    [
        (lenet_300_100(), ["relu1"], "'relu1' is a ReLU, without a weight to prune; layers"),
        (lenet_300_100(), ["fc9"], "no layer 'fc9'; layers that can be pruned: fc1, fc2, f"),
        (nn.Sequential(nn.ReLU()), None, "Sequential has no Linear or convolution layer"),
    ],
)
def test_a_layer_without_weights_is_refused(model, layers, message):
    with pytest.raises(ValueError, match=message):
        magnitude(model, layers)
