"""Bytes of a step: arithmetic, a rehearsal without contents, and a count agree."""

import weakref
from functools import partial

import pytest
import torch
from pruned import normed_net
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet50

from mpcourse.memory import (
    ByteCounter,
    account,
    count_step,
    nbytes,
    optimizer_bytes,
    recomputed,
    rehearse_step,
    saved_for_backward,
)
from mpcourse.memory.accounting import WithoutContents
from mpcourse.training.nets import deep_conv_net, mnist_net

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
}


class SmallTransformer(nn.Module):
    """Tokens (N, T) to logits (N x T, 50), with a tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True) for _ in range(2)
        ]
        self.embedding, self.layers = nn.Embedding(50, 32), nn.Sequential(*layers)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens))).flatten(0, 1)


class Recomputed(nn.Sequential):
    def forward(self, values):
        return recomputed(nn.Sequential(*self), values)


def two_layers(*more):
    return nn.Sequential(nn.Linear(32, 32), *more, nn.Linear(32, 32))


def rows():
    return torch.randn(256, 32), torch.rand(256, 32)


def digits():
    return torch.randn(32, 1, 28, 28), torch.randint(10, (32,))


def tokens():
    return torch.randint(50, (4, 16)), torch.randint(50, (64,))


NETS = {
    "mnist_net": (mnist_net, digits),
    "conv net with batch norm": (normed_net, digits),
    "deep_conv_net": (deep_conv_net, digits),
    "transformer with dropout": (SmallTransformer, tokens),
    "recomputed part": (
        lambda: two_layers(Recomputed(nn.Linear(32, 32), nn.Dropout(0.5), nn.BatchNorm1d(32))),
        rows,
    ),
    "resnet50": (resnet50, lambda: (torch.randn(2, 3, 64, 64), torch.randint(1000, (2,)))),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("net", NETS)
def test_account_and_rehearsal_agree_with_the_count(net, kind):
    if net == "resnet50" and kind != "adam":
        pytest.skip("the largest net once")
    make_model, make_batch = NETS[net]
    predicted = account(make_model, make_batch, F.cross_entropy, kind)
    rehearsed = rehearse_step(make_model, make_batch, F.cross_entropy, OPTIMIZERS[kind])
    counted = count_step(make_model, make_batch, F.cross_entropy, OPTIMIZERS[kind])
    held = predicted.resident + predicted.batch
    assert predicted.total == held + predicted.gradients + predicted.activations
    assert counted.before == held
    assert counted.after_forward == pytest.approx(held + predicted.activations, rel=0.02)
    assert counted.after_backward == pytest.approx(held + predicted.gradients, rel=0.02)
    assert counted.after_step == counted.after_backward
    assert counted.peak == pytest.approx(rehearsed.peak, rel=0.02)
    assert counted.peak_phase == rehearsed.peak_phase
    assert counted.peak_operation == rehearsed.peak_operation


def test_adam_keeps_numbers_of_the_parameters_type_and_counts_in_float32():
    parameters = [torch.empty(n, dtype=torch.bfloat16) for n in (1000, 24)]
    assert optimizer_bytes(parameters, "adam") == 4 * 1024 + 2 * 4
    with pytest.raises(ValueError, match="one of sgd, momentum, adam; got 'adagrad'"):
        optimizer_bytes(parameters, "adagrad")


def test_a_model_larger_than_any_machine_is_accounted_for():
    def make():
        return nn.Sequential(*[nn.Linear(200_000, 200_000, bias=False) for _ in range(3)])

    def batch():
        return torch.randn(2, 200_000), torch.zeros(2, 200_000)

    found = account(make, batch, F.mse_loss, "adam")
    assert found.parameters == 3 * 4 * 200_000**2


def test_frozen_parameters_have_no_gradient_and_no_state():
    def make():
        model = mnist_net()
        model.fc1.requires_grad_(False)
        return model

    found = account(make, digits, F.cross_entropy, "momentum")
    assert found.parameters == 4 * 109_386
    assert found.gradients == found.optimizer_state == 4 * (109_386 - 785 * 128)


LOSSES = {
    "mse": F.mse_loss,
    "sum": partial(F.mse_loss, reduction="sum"),
    "smooth l1": F.smooth_l1_loss,
    "soft margin": F.soft_margin_loss,
    "cross entropy": lambda outputs, targets: F.binary_cross_entropy(outputs.sigmoid(), targets),
    "by hand": lambda outputs, targets: (outputs - targets).square().mean(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_keeps_its_terms_is_accounted_for(loss):
    """In the kernels of some losses the one number keeps the storage of all terms."""
    predicted = account(two_layers, rows, LOSSES[loss], "sgd")
    counted = count_step(two_layers, rows, LOSSES[loss], OPTIMIZERS["sgd"])
    held = predicted.resident + predicted.batch
    assert counted.after_forward == pytest.approx(held + predicted.activations, rel=0.02)
    assert counted == rehearse_step(two_layers, rows, LOSSES[loss], OPTIMIZERS["sgd"])


CONVERTED = {
    "bfloat16": lambda model: model.bfloat16(),
    "to a type": lambda model: model.to(torch.float64),
    "to a device": lambda model: model.to("cpu"),
    "memory format": lambda model: model.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("how", CONVERTED)
def test_a_model_is_converted_where_it_is_made(how):
    """Sizes that nothing has seen before: a cache of torch's let later models pass."""

    for width in (41, 43):
        with WithoutContents():
            model = CONVERTED[how](nn.Sequential(nn.Conv2d(3, width, 3), nn.Linear(width, 8)))
        assert all(isinstance(p, nn.Parameter) for p in model.parameters())


class WithAnother(nn.Sequential):
    """Its last layer is never reached."""

    def forward(self, values):
        return self[0](values)


def test_what_the_loss_does_not_depend_on_has_no_gradient_and_no_state():
    make, kind = lambda: WithAnother(nn.Linear(32, 32), nn.Linear(32, 320)), "adam"
    predicted = account(make, rows, F.mse_loss, kind)
    assert predicted.gradients == 4 * 33 * 32
    assert predicted.optimizer_state == 2 * 4 * 33 * 32 + 2 * 4
    counted = count_step(make, rows, F.mse_loss, OPTIMIZERS[kind])
    assert counted.before == predicted.resident + predicted.batch


class First(nn.LSTM):
    def forward(self, values):
        return super().forward(values)[0]


UNKNOWN = {
    "lstm": (
        lambda: First(8, 8),
        lambda: torch.randn(2, 5, 4, 8).unbind(),
        F.mse_loss,
        "mkldnn_rnn_layer.default takes room that only its",
    ),
    "sparse": (
        lambda: nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 50)),
        lambda: (torch.randint(50, (64,)), torch.randint(50, (64,))),
        F.cross_entropy,
        "the size of a sparse",
    ),
    "numbers": (
        two_layers,
        rows,
        lambda outputs, targets: outputs[targets > 0.5].sum(),
        "aten.nonzero.default depends on numbers",
    ),
}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="the LSTM's kernel is its")
@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_before_it_runs_is_said_and_counted(case):
    *step, words = UNKNOWN[case]
    for ask in (partial(account, *step, "sgd"), partial(rehearse_step, *step, OPTIMIZERS["sgd"])):
        with pytest.raises(RuntimeError, match=f"{words}.*count_step counts it"):
            ask()
    assert count_step(*step, OPTIMIZERS["sgd"]).peak > 0


THERE, WEIGHTS = two_layers(), torch.ones(32)


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (lambda: THERE, F.mse_loss),
        (two_layers, lambda outputs, targets: (WEIGHTS * (outputs - targets)).sum()),
    ],
)
def test_what_was_there_before_is_refused(make, loss):
    with pytest.raises(RuntimeError, match=r"was there before.* have to make the model, the batch"):
        account(make, rows, loss, "sgd")


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (torch.no_grad(), "outside of no_grad"),
        (torch.inference_mode(), "outside of no_grad"),
        (torch.autocast("cpu", torch.bfloat16), "use it in the model's forward, or rehearse_step"),
    ],
)
def test_a_mode_around_an_account_is_refused(mode, words):
    with mode, pytest.raises(RuntimeError, match=words):
        account(two_layers, rows, F.mse_loss, "sgd")


def test_sparse_gradients_are_counted():
    """32 samples of a row of 8 numbers and its index, which SGD passes on."""
    layer = nn.Embedding(50, 8, sparse=True)
    with ByteCounter(layer.weight) as counter:
        before = counter.live
        layer(torch.arange(32)).sum().backward()
    assert counter.live - before == 32 * (8 * 4 + 8)
    assert nbytes([layer.weight.grad]) == 32 * (8 * 4 + 8)


def test_storages_are_counted_once_and_leave_when_freed():
    held = torch.zeros(100)
    with ByteCounter(held, held.view(10, 10)) as counter:
        assert counter.live == 400
        made = torch.ones(50)
        view = made[10:]
        assert counter.live == 600
        del made
        assert counter.live == 600  # the view keeps the storage
        held.add_(1)
        del view
        assert counter.live == 400
        counter.phase = "late"
        torch.ones(300)
    assert (counter.live, counter.peak, counter.peak_phase) == (400, 1600, "late")
    assert counter.peak_operation == "aten.ones.default"
    assert counter.live == nbytes([held, held[:3]])


def test_saved_tensors_are_counted_once_without_what_is_left_out():
    weights = torch.randn(8, 8, requires_grad=True)
    inputs = torch.randn(4, 8)
    with saved_for_backward(weights, [inputs]) as saved:
        hidden = (inputs @ weights).tanh()  # the product saves inputs; tanh its result
        (hidden * hidden).sum()  # saves the same storage twice more
    assert saved.total == 4 * 8 * 4
    assert saved.tensors == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="its CPU twin stands above")
def test_on_cuda_the_allocator_agrees_within_its_rounding():
    def make():
        return nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()

    def batch():
        return torch.randn(4096, 2048, device="cuda"), torch.randn(4096, 2048, device="cuda")

    nn.Linear(8, 8).cuda()(torch.ones(8, 8, device="cuda")).sum().backward()  # cuBLAS's workspaces
    elsewhere = torch.cuda.memory_allocated()
    counted = count_step(make, batch, F.mse_loss, OPTIMIZERS["momentum"])
    predicted = account(make, batch, F.mse_loss, "momentum")
    resting = predicted.resident + predicted.batch
    assert counted.before - elsewhere == pytest.approx(resting, rel=0.02, abs=2**24)
    assert counted.peak > counted.before


def test_what_is_saved_for_a_backward_that_never_comes_is_freed():
    net = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2))
    made = []  # by the sigmoid, which saves its own output
    net[1].register_forward_hook(
        lambda *given: made.append(weakref.ref(given[2].untyped_storage()))
    )
    with saved_for_backward(list(net.parameters())):
        net(torch.ones(3, 4))
    assert made[0]() is None
