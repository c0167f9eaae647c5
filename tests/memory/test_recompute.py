"""Recomputation: same losses, gradients, random numbers, statistics; fewer bytes, as predicted."""

import copy

import pytest
import torch
from pruned import normed_net
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpcourse.data_parallel import DataParallel
from mpcourse.devices import get_devices
from mpcourse.memory import ByteCounter, recomputed


def conv_layers():
    torch.manual_seed(3)
    layers = list(normed_net())
    return nn.Sequential(*layers[:4], nn.Dropout(0.3), *layers[4:]).double()


def in_segments(net, inputs, count):
    """Each of `count` parts of the layers recomputed, longer parts first."""
    for layers in torch.arange(len(net)).tensor_split(count):
        inputs = recomputed(net[layers[0] : layers[-1] + 1], inputs)
    return inputs


def run(net, forward, *, learns_inputs=False):
    """Loss, gradients, buffers and the next random number after a step."""
    torch.manual_seed(5)
    images = torch.randn(6, 1, 28, 28, dtype=torch.float64, requires_grad=learns_inputs)
    loss = forward(net, images).square().mean()
    loss.backward()
    gradients = [p.grad for p in net.parameters()] + [images.grad] * learns_inputs
    return loss, gradients, [b.clone() for b in net.buffers()], torch.rand(3)


@pytest.mark.parametrize("learns_inputs", [False, True])
@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_step_is_the_same_as_without(count, learns_inputs):
    net = conv_layers()
    plain = run(copy.deepcopy(net), lambda m, x: m(x), learns_inputs=learns_inputs)
    again = run(net, lambda m, x: in_segments(m, x, count), learns_inputs=learns_inputs)
    for expected, found in zip(plain, again, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_frozen_part_and_an_unused_parameter_stay_without_gradient():
    part = nn.Linear(3, 3)
    part.unused = nn.Parameter(torch.zeros(2))
    part.bias.requires_grad_(False)
    recomputed(part, torch.ones(2, 3)).sum().backward()
    assert part.unused.grad is None
    assert part.bias.grad is None
    assert torch.equal(part.weight.grad, torch.full((3, 3), 2.0))


def test_autocast_of_the_forward_holds_in_the_second_run():
    seen = []

    class Seeing(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            seen.append(outputs.dtype)
            return outputs

    part = Seeing(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = recomputed(part, torch.ones(2, 4))
    outputs.sum().backward()  # outside of autocast
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert part.weight.grad.dtype == torch.float32


class Does(nn.Linear):
    """A layer that does something with its output, or reads more than its parameters."""

    def __init__(self, does):
        super().__init__(3, 3)
        self.does = does

    def forward(self, rows):
        return self.does(super().forward(rows))


def penalty(part, rows):
    loss = recomputed(part, rows).square().sum()
    [slope] = torch.autograd.grad(loss, rows, create_graph=True)
    return loss + slope.square().sum()


def replicas(part, rows):
    class Within(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = part

        def forward(self, rows):
            return recomputed(self.part, rows)

    devices = get_devices(2)
    return DataParallel(Within().to(devices[0].device), devices)(rows)


ELSEWHERE = torch.ones(3, 3, requires_grad=True)


@pytest.mark.parametrize(
    ("part", "call", "words"),
    [
        (nn.Linear(3, 3), penalty, "first derivatives alone"),
        (Does(lambda rows: rows @ ELSEWHERE), recomputed, "not among its parameters"),
        (nn.Linear(3, 3), replicas, "not among its parameters"),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3)), recomputed, "input in place"),
        (
            Does(lambda rows: checkpoint(nn.Dropout(0.5), rows, use_reentrant=False)),
            recomputed,
            "other",
        ),
        (
            nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)),
            lambda *given: get_devices(2)[1].run(recomputed, *given),
            "recompute the stage, Pipe",
        ),
        (nn.LSTM(3, 3), recomputed, "from one tensor to one tensor; LSTM gives a tuple"),
    ],
)
def test_what_it_would_get_wrong_is_refused(part, call, words):
    rows = torch.randn(4, 3, requires_grad=True) + 0
    with pytest.raises((RuntimeError, TypeError), match=words):
        call(part, rows).sum().backward()
    assert [p.grad for p in part.parameters()] == [None] * len(list(part.parameters()))


def test_a_second_backward_through_a_kept_graph_adds_the_same_gradients():
    part = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    loss = recomputed(part, torch.randn(4, 3)).square().sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in part.parameters()]
    loss.backward()
    torch.testing.assert_close([p.grad for p in part.parameters()], [2 * g for g in once])


WIDTH, SAMPLES, LAYERS = 16, 1024, 12
UNIT = 4 * WIDTH * SAMPLES


def counted_peak(count):
    """In units of one activation, without parameters, gradients and the batch."""
    net = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)])
    inputs = torch.randn(SAMPLES, WIDTH)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with ByteCounter(list(net.parameters()), inputs) as counter:
        counter.hold([p.grad for p in net.parameters()], "")
        before = counter.live
        in_segments(net, inputs, count).sum().backward()
    assert counter.live == before
    return (counter.peak - before) / UNIT


@pytest.mark.parametrize("count", [1, 2, 4, 12])
def test_bytes_over_the_number_of_segments(count):
    """All inputs of segments but the net's own, one segment's layers, two gradients on the way."""
    assert counted_peak(count) == pytest.approx(count - 1 + LAYERS / count + 2, rel=0.02)
