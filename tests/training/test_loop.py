"""An epoch of a pipeline is an epoch of the plain model; evaluation counts samples, not batches."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpcourse.devices.devices import get_devices
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.training.loop import Epoch, Evaluation, evaluate, train_epoch

MEAN, SUM = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def make_data(samples: int = 23) -> TensorDataset:
    return TensorDataset(
        torch.randn(samples, 6, dtype=torch.float64), torch.randint(0, 3, (samples,))
    )


def pipelined(net: nn.Sequential, **cut: int) -> Pipeline:
    return Pipeline([net[:2], net[2:]], **(cut or {"num_microbatches": 4}))


@pytest.mark.parametrize("loss_fn", [MEAN, SUM], ids=["mean", "sum"])
def test_a_pipeline_s_losses_and_parameters_are_those_of_the_plain_model(loss_fn):
    plain, data = make_net(), make_data()
    net = copy.deepcopy(plain)
    losses = []
    for model, weights in ((plain, plain), (pipelined(net), net)):
        optimizer = torch.optim.SGD(weights.parameters(), lr=0.01, momentum=0.9)
        loader = DataLoader(data, batch_size=5)
        losses += [train_epoch(model, loader, optimizer, loss_fn) for _ in range(2)]
    assert losses[:2] == [Epoch(pytest.approx(e.losses, rel=1e-12), 23) for e in losses[2:]]
    assert len(losses[0].losses) == 5
    for found, expected in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=1e-12)


def test_training_lowers_the_loss_and_leaves_training_mode_on():
    net, data = make_net().eval(), make_data()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    epochs = [train_epoch(net, [data.tensors], optimizer, MEAN).losses[0] for _ in range(20)]
    assert epochs[-1] < 0.8 * epochs[0]
    assert net.training


@pytest.mark.parametrize("loss_fn", [MEAN, SUM], ids=["mean", "sum"])
@pytest.mark.parametrize("batch_size", [23, 10, 22, 1])
def test_evaluation_over_ragged_batches_is_that_of_one_batch(loss_fn, batch_size):
    net, data = make_net(), make_data()
    inputs, targets = data.tensors
    outputs = net(inputs)
    expected = Evaluation(
        pytest.approx(loss_fn(outputs, targets).item(), rel=1e-12),
        (outputs.argmax(1) == targets).float().mean().item(),
        23,
    )
    found = evaluate(net, DataLoader(data, batch_size=batch_size), loss_fn)
    assert found == (expected[0], pytest.approx(expected[1]), 23)
    piped = evaluate(pipelined(net), DataLoader(data, batch_size=batch_size), loss_fn)
    assert piped == (expected[0], pytest.approx(expected[1]), 23)


def test_evaluation_runs_without_gradients_in_evaluation_mode_and_leaves_every_mode_as_it_was():
    seen = []

    class Spy(nn.Module):
        def forward(self, rows):
            seen.append((self.training, torch.is_grad_enabled()))
            return rows

    net = nn.Sequential(make_net(), Spy(), nn.Dropout(0.5).eval())
    for model in (net, Pipeline([net[:1], net[1:]], num_microbatches=2)):
        evaluate(model, [make_data(4).tensors], MEAN)
        assert (net.training, net[1].training, net[2].training) == (True, True, False)
    assert set(seen) == {(False, False)}
    assert len(seen) == 3


def test_inputs_and_targets_may_lie_anywhere():
    place = get_devices(2)[1].device
    net = make_net().to(place)
    data = make_data(4)
    train_epoch(net, [data.tensors], torch.optim.SGD(net.parameters(), lr=0.1), MEAN)
    assert evaluate(net, [data.tensors], MEAN).num_samples == 4


@pytest.mark.parametrize(
    ("targets", "given"),
    [
        (torch.rand(3, 3), r"torch.float32 of shape \(3, 3\)"),  # as many as there are classes
        (torch.tensor([[0], [1], [2]]), r"torch.int64 of shape \(3, 1\)"),
        (torch.tensor([0.0, 1.0, 2.0]), r"torch.float32 of shape \(3,\)"),
    ],
)
def test_targets_that_are_no_class_numbers_are_refused(targets, given):
    net = make_net().eval()
    with pytest.raises(ValueError, match=rf"class numbers of shape \(N,\); got {given}"):
        evaluate(net, [(torch.randn(3, 6).double(), targets)], MEAN)
    assert not net.training


@pytest.mark.parametrize("make", [lambda net: net, pipelined])
def test_an_empty_batch_is_refused_before_its_step(make):
    net, whole = make_net(), make_data(5).tensors
    batches = [whole, tuple(tensor[:0] for tensor in whole)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    once = copy.deepcopy(net)
    train_epoch(once, [whole], torch.optim.SGD(once.parameters(), lr=0.1), MEAN)
    with pytest.raises(ValueError, match="a batch is empty"):
        train_epoch(make(net), batches, optimizer, MEAN)
    torch.testing.assert_close(dict(net.cpu().state_dict()), dict(once.state_dict()))
    with pytest.raises(ValueError, match="a batch is empty"):
        evaluate(make(net), batches, MEAN)


def test_no_batches_and_means_over_something_else_are_refused():
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="the loader has no batches"):
        train_epoch(net, [], optimizer, MEAN)
    with pytest.raises(ValueError, match="the loader has no batches"):
        evaluate(net, [], MEAN)
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="class weights, so its mean is not one over samples"):
        evaluate(net, [make_data(4).tensors], weighted)
    with pytest.raises(ValueError, match="must say how it is reduced"):
        evaluate(net, [make_data(4).tensors], lambda output, target: output.sum())
    assert net.training  # also after an error
