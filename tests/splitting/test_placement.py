"""Pretended GPUs: what crosses is counted, what meets is refused, nothing real is touched."""

import functools
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mpcourse.devices.workers import Cancelled, Worker
from mpcourse.splitting import pretended
from mpcourse.splitting.placement import Placement, Transfer, try_placement
from mpcourse.splitting.splits import split_sequential
from mpcourse.training.nets import mnist_net

ROWS, LABELS = torch.randn(20, 10), torch.randint(0, 5, (20,))
APART = "Expected all tensors to be on the same device, but found at least two devices, {}!"


def step(rows, labels, hidden_on="cuda:1", labels_on="cuda:1"):
    first = nn.Linear(10, 10).to("cuda:0")
    second = nn.Linear(10, 5).to("cuda:1")
    hidden = first(rows.to("cuda:0")).relu()
    outputs = second(hidden.to(hidden_on))
    loss = cross_entropy(outputs, labels.to(labels_on))
    loss.backward()


def run_layers(layers, places, inputs):
    for layer, place in zip(layers, places, strict=True):
        inputs = layer.to(place)(inputs.to(place))
    return inputs


def test_a_training_step_sends_the_hidden_rows_over_and_their_gradient_back():
    placement = try_placement(step, ROWS, LABELS)
    assert placement == Placement(
        (
            Transfer("cpu", "cuda:0", (20, 10), 800, False),
            Transfer("cuda:0", "cuda:1", (20, 10), 800, False),
            Transfer("cpu", "cuda:1", (20,), 160, False),
            Transfer("cuda:1", "cuda:0", (20, 10), 800, True),
        ),
        {"cuda:0": 4 * 110, "cuda:1": 4 * 55},
    )
    assert [transfer.between_gpus for transfer in placement.transfers] == [False, True, False, True]


@pytest.mark.parametrize("gradients", [True, False])
def test_as_many_bytes_cross_as_the_real_stages_hand_over(gradients):
    images, model = torch.randn(6, 1, 28, 28), mnist_net()
    stages = split_sequential(model, 3, by="count")

    def program(stages, images):
        with torch.set_grad_enabled(gradients):
            outputs = run_layers(stages, ["cuda:0", "cuda:1", "cuda:0"], images)
            if gradients:
                outputs.sum().backward()

    placement = try_placement(program, stages, images)
    hidden = [stages[0](images), stages[1](stages[0](images))]
    sent = [transfer.nbytes for transfer in placement.transfers if transfer.between_gpus]
    there = [value.nbytes for value in hidden]
    assert sent == there + there[::-1] * gradients
    first, second, third = (sum(p.nbytes for p in stage.parameters()) for stage in stages)
    assert placement.parameter_bytes == {"cuda:0": first + third, "cuda:1": second}


@pytest.mark.parametrize(
    ("move", "number"),
    [
        (lambda rows: rows.to("cuda:1"), 1),
        (lambda rows: rows.to(torch.device("cuda", 1)), 1),
        (lambda rows: rows.to(device="cuda:1"), 1),
        (lambda rows: rows.cuda(1), 1),
        (lambda rows: rows.cuda("cuda:1"), 1),
        (lambda rows: rows.cuda(device=1), 1),
        (lambda rows: rows.cuda(1, non_blocking=True), 1),
        (lambda rows: rows.cuda(non_blocking=True, device=1), 1),
        (lambda rows: rows.to(1), 1),
        (lambda rows: rows.to(torch.empty(0, device=1)), 1),
        (lambda rows: torch.empty(20, 10, device="cuda:1").copy_(rows), 1),
        (lambda rows: torch.as_tensor(rows, device="cuda:1"), 1),
        (lambda rows: rows.cuda(), 0),  # a GPU without a number is the first
        (lambda rows: rows.cuda(non_blocking=True), 0),
        (lambda rows: rows.to("cuda"), 0),
    ],
)
def test_every_way_to_move_a_tensor_counts_once(move, number):
    [transfer] = try_placement(lambda rows: move(rows).relu(), ROWS).transfers
    assert transfer == Transfer("cpu", f"cuda:{number}", (20, 10), 800, False)


def test_a_single_number_can_be_moved_too():
    def program():
        return torch.tensor([1.0]).to("cuda:1") + torch.tensor(1.0).cuda(1) + torch.ones(3).cuda(1)

    assert [transfer.nbytes for transfer in try_placement(program).transfers] == [4, 4, 12]


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: torch.tensor([1.0, 2.0], device=1),
        lambda rows: torch.asarray([1.0, 2.0], device="cuda:1"),
        lambda rows: rows.new_tensor([1.0, 2.0], device="cuda:1"),
        lambda rows: torch.empty(0, device="cuda:1").new_tensor([1.0, 2.0]),
    ],
)
def test_numbers_from_the_host_cross_to_where_their_tensor_is(make):
    placement = try_placement(lambda rows: make(rows) + torch.ones(2, device="cuda:1"), ROWS)
    assert placement.transfers == (Transfer("cpu", "cuda:1", (2,), 8, False),)


def test_what_is_already_there_does_not_cross():
    def program():
        rows = torch.ones(3, 10, device="cuda:1")
        with torch.device("cuda:1"):
            rows = nn.Linear(10, 10)(rows.to("cuda:1") + torch.zeros(10))
        rows.double().to("cuda:1")

    assert try_placement(program).transfers == ()


def test_moving_modules_is_no_transfer_and_only_what_computes_is_counted():
    def program(rows):
        unused = nn.Linear(1000, 1000).to("cuda:0")
        layer = nn.Linear(10, 2).to("cuda:0").to("cuda:1")
        return unused, layer(rows.to("cuda:1"))

    placement = try_placement(program, ROWS)
    assert [transfer.target for transfer in placement.transfers] == ["cuda:1"]
    assert placement.parameter_bytes == {"cuda:1": 88}


def test_everything_that_layers_are_made_of_can_be_moved():
    def program(images):
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 7)]
        net = nn.Sequential(*layers).to("cuda:0")
        net(images.to("cuda:0")).sum().backward()
        net.double().to("cuda:1")  # buffers and gradients go along
        net(images.double().to("cuda:1")).sum().backward()
        torch.optim.Adam(net.parameters()).step()
        nn.LSTM(3, 4).cuda(1)(torch.randn(2, 5, 3, device="cuda:1"))
        assert net[0].weight.dtype == torch.float64

    placement = try_placement(program, torch.randn(2, 1, 8, 8))
    assert placement.error is None
    assert set(placement.parameter_bytes) == {"cuda:1"}


@pytest.mark.parametrize(
    ("places", "line", "found"),
    [
        (("cuda:0", "cuda:1"), "outputs = second(hidden.to(hidden_on))", "cuda:0 and cuda:1"),
        (("cuda:1", "cuda:0"), "loss = cross_entropy", "cuda:0 and cuda:1"),
        (("cuda:1", "cpu"), "loss = cross_entropy", "cpu and cuda:1"),
        (("cpu", "cuda:1"), "outputs = second(hidden.to(hidden_on))", "cpu and cuda:1"),
    ],
)
def test_tensors_on_two_devices_are_refused_in_torch_s_words(places, line, found):
    placement = try_placement(step, ROWS, LABELS, *places)
    assert placement.error == APART.format(found)
    assert placement.line.startswith(line)
    assert str(placement) == f"at: {placement.line}\nRuntimeError: {placement.error}"


@pytest.mark.parametrize(
    "program",
    [
        lambda: torch.ones(3, device="cuda:0") + torch.ones(3, device="cuda:1"),
        lambda: torch.ones((), device="cuda:0") + torch.ones(3, device="cuda:1"),
        lambda: torch.ones((), device="cuda:0") + torch.ones((), device="cuda:1"),
        lambda: torch.cat([torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")]),
        lambda: torch.tensor([1.0], device="cuda:0") @ torch.ones(1, 2).cuda(1),
    ],
)
def test_no_operation_takes_tensors_of_two_gpus(program):
    assert try_placement(program).error == APART.format("cuda:0 and cuda:1")


def test_other_errors_of_the_program_come_out_without_a_log(caplog, capfd):
    with pytest.raises(RuntimeError, match=r"2, 2"):
        try_placement(lambda: nn.Linear(3, 3)(torch.ones(2, 2)))
    assert (caplog.text, capfd.readouterr().err) == ("", "")


OUTSIDE = nn.Linear(10, 10)


@pytest.mark.parametrize(
    ("program", "rows", "error", "message"),
    [
        (lambda rows: rows.sum().item(), ROWS, RuntimeError, r"no numbers: leave out item\(\)"),
        (lambda rows: OUTSIDE.to("cuda:0"), ROWS, TypeError, "hand in its twin"),
        (torch.relu, ROWS.to("meta"), ValueError, "lies on the CPU, as on a host; got meta"),
    ],
)
def test_what_cannot_be_pretended_is_refused(program, rows, error, message):
    with pytest.raises(error, match=message):
        try_placement(program, rows)


def test_a_gpu_too_many_is_named():
    message = "invalid device ordinal: cuda:2 .the last pretended GPU is cuda:1"
    with pytest.raises(RuntimeError, match=message):
        try_placement(lambda rows: rows.to("cuda:2"), ROWS)
    for move in (lambda rows: rows.to(2), lambda rows: rows.cuda(2)):
        with pytest.raises(RuntimeError, match=message):
            try_placement(move, ROWS)


def test_a_torch_without_fake_tensors_is_named(monkeypatch):
    monkeypatch.setattr(pretended, "FakeTensorMode", None)
    with pytest.raises(RuntimeError, match=r"has no torch\._subclasses\.fake_tensor"):
        try_placement(step, ROWS, LABELS)


def test_a_wrapper_is_not_the_program_whose_line_is_named():
    in_another_file = eval("lambda *given: step(*given)", {"step": step})
    wrapped = functools.wraps(step)(in_another_file)
    line = try_placement(wrapped, ROWS, LABELS, "cuda:1", "cpu").line
    assert line == "loss = cross_entropy(outputs, labels.to(labels_on))"


def test_the_model_and_the_random_numbers_outside_stay_as_they_were():
    model = nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4), nn.Linear(4, 5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()

    def program(model, rows):
        run_layers(model, ["cuda:0", "cuda:1", "cuda:1"], rows).sum().backward()
        nn.Linear(3, 3)

    assert try_placement(program, model, ROWS).error is None
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_shared_parameters_stay_shared():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    model[1].weight = model[0].weight

    def program(layers, model, rows):
        assert layers[1].weight is model[0].weight is model[1].weight
        model.to("cuda:1")(rows.to("cuda:1"))

    placement = try_placement(program, list(model), model, ROWS)
    assert placement.parameter_bytes == {"cuda:1": 4 * (100 + 20)}


def test_modules_move_as_ever_afterwards_and_in_other_threads():
    def program():
        layer = nn.Linear(2, 2)
        found = []
        thread = threading.Thread(target=lambda: found.append(outside.double().weight.dtype))
        thread.start()
        thread.join()
        assert found == [torch.float64]
        layer.to("cuda:0")

    outside, apply = nn.Linear(2, 2), nn.Module._apply
    try_placement(program)
    assert nn.Module._apply is apply
    with pytest.raises(ZeroDivisionError):
        try_placement(lambda: 1 / 0)
    assert nn.Module._apply is apply
    assert outside.to(torch.float32).weight.dtype == torch.float32


def test_a_program_is_stopped_at_any_time_and_python_goes_on():
    def endless():
        while True:
            step(ROWS, LABELS)

    worker = Worker("pretended")
    for waited in range(40):
        job = worker.submit(try_placement, endless)
        time.sleep(0.05 + waited / 1000)
        worker.cancel(job)
        with pytest.raises(Cancelled):
            job.result(timeout=30)


def test_no_real_gpu_is_looked_for(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a real GPU was looked for")

    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # as where there is one
    monkeypatch.setattr(torch.cuda, "current_device", refuse)
    assert try_placement(step, ROWS, LABELS).error is None
