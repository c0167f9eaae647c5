"""`parallel_apply`: modules that run at the same time, and what happens when one of them fails."""

import _thread
import contextlib
import threading
import time
from functools import partial

import pytest
import torch
from torch import nn
from verbs import ALL_GPUS, GPUS, WAIT_S, indices

from mpcourse.data_parallel.replicas import parallel_apply
from mpcourse.devices.devices import as_devices, get_devices


class Coded(Exception):
    """An exception that cannot be made out of a message alone."""

    def __init__(self, code, *, reason):
        super().__init__(code, reason)
        self.code, self.reason = code, reason


def identity(*args, **kwargs):
    return args, kwargs


def thread_id():
    return threading.get_ident()


X = torch.arange(2)

GIVEN = {  # what is given for a module, and the arguments that it receives
    "tensor": (X, (X,)),
    "tuple": ((X,), (X,)),
    "list": ([X, 3], (X, 3)),
    "no tuple": ((), ()),
    "no list": ([], ()),
    "dict": ({"x": X}, ({"x": X},)),
    "None": (None, (None,)),
    "str": ("text", ("text",)),
    "nested": (((X, X),), ((X, X),)),
    "lists": ([[X]], ([X],)),
}


@pytest.mark.parametrize(("given", "received"), GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("devices", [["cpu"], None])
def test_tuple_or_list_is_the_arguments_and_anything_else_is_one_argument(given, received, devices):
    ((args, kwargs),) = parallel_apply([identity], [given], devices=devices)
    assert kwargs == {}
    assert args == received  # `is` or `==` for each entry, so the very same tensors


def test_keyword_arguments_reach_their_module():
    keywords = ({"a": 1}, {}, {"b": X})
    outputs = parallel_apply([identity] * 3, [(1,), (2,), ()], keywords, ["cpu"] * 3)
    assert outputs == [((1,), {"a": 1}), ((2,), {}), ((), {"b": X})]


@pytest.mark.parametrize("caller", [None, 0, 2], ids=lambda index: f"from worker {index}")
@pytest.mark.parametrize("named", [True, False], ids=["devices named", "devices left out"])
def test_modules_run_at_the_same_time(named, caller):
    count = 3
    all_there = threading.Barrier(count)

    def meet(x):
        all_there.wait(WAIT_S)
        return x

    inputs = [torch.tensor([i]) for i in range(count)]
    devices = get_devices(count) if named else None
    call = partial(parallel_apply, [meet] * count, inputs, devices=devices)
    outputs = call() if caller is None else get_devices(count)[caller].run(call)
    assert [output.item() for output in outputs] == list(range(count))


def test_each_device_has_its_own_thread_and_keeps_it():
    devices = as_devices(["cpu"] * 3)
    threads = parallel_apply([thread_id] * 3, [()] * 3, devices=devices)
    assert len({thread_id(), *threads}) == 4
    assert parallel_apply([thread_id] * 3, [()] * 3, devices=devices) == threads
    assert [device.run(thread_id) for device in devices] == threads
    assert parallel_apply([thread_id] * 2, [()] * 2, devices=["cpu:2", "cpu:0"]) == [
        threads[2],
        threads[0],
    ]


@pytest.mark.parametrize(
    "given",
    [X, (X,), {"x": X}, (1, {"x": [X]}), (), 5],
    ids=["tensor", "in a tuple", "in a dict", "deep", "nothing", "no tensor"],
)
def test_without_devices_each_module_runs_on_a_core_of_its_own(given):
    threads = parallel_apply([lambda *_: thread_id()] * 2, [given, given])
    assert threads == [device.run(thread_id) for device in as_devices(["cpu", "cpu"])]


def modes():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


MODES = {
    "as usual": [],
    "no_grad": [torch.no_grad],
    "inference mode": [torch.inference_mode],
    "none in inference mode": [torch.inference_mode, lambda: torch.inference_mode(False)],
    "autocast": [lambda: torch.autocast("cpu", dtype=torch.bfloat16)],
    "two at once": [lambda: torch.autocast("cpu", dtype=torch.float16), torch.no_grad],
}


@pytest.mark.parametrize("contexts", MODES.values(), ids=MODES)
def test_modes_of_the_caller_hold_in_the_workers(contexts):
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        here, there = modes(), parallel_apply([modes] * 2, [()] * 2, devices=["cpu"] * 2)
    assert there == [here, here]
    assert parallel_apply([modes] * 2, [()] * 2, devices=["cpu"] * 2) == [modes()] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([len], [(), ()]), "same length; got modules 1, inputs 2, kwargs_tup 1, devices 2"),
        (([len], [()], [{}, {}], ["cpu"]), "modules 1, inputs 1, kwargs_tup 2, devices 1"),
        (([len], [()], None, ["cpu", "cpu"]), "modules 1, inputs 1, kwargs_tup 1, devices 2"),
        (([], []), "needs at least one module; got none"),
        (([len], [1], get_devices(1)), r"for each module; got Device \(devices are named"),
    ],
)
def test_no_modules_lists_of_different_lengths_and_devices_in_another_place_are_refused(
    arguments, message
):
    with pytest.raises((ValueError, TypeError), match=message):
        parallel_apply(*arguments)


def test_device_that_does_not_exist_is_refused_before_anything_runs():
    ran = []
    with pytest.raises(ValueError, match="this machine has no device 'cuda:99'"):
        parallel_apply([ran.append] * 2, [1, 2], devices=["cpu", "cuda:99"])
    with pytest.raises(ValueError, match="this machine has no device 'meta'"):
        parallel_apply([ran.append], [torch.ones(1, device="meta")])
    assert ran == []


def fail(error):
    raise error


def test_exception_keeps_its_identity_and_names_replica_and_device():
    raised = Coded(7, reason="on purpose")
    with pytest.raises(Coded) as error:
        parallel_apply(
            [identity, fail, identity], [(), (raised,), ()], devices=["cpu", "cpu:4", "cpu"]
        )
    assert error.value is raised
    assert (error.value.code, error.value.reason) == (7, "on purpose")
    assert "raised in replica 1 on CPU core 4" in error.value.__notes__
    assert "in fail" in "".join(f" in {entry.name}" for entry in error.traceback)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_other_replicas_have_ended_when_the_exception_comes_out(failing):
    started, ended = threading.Barrier(3), []

    def work(index):
        started.wait(WAIT_S)
        if index == failing:
            raise LookupError(index)
        time.sleep(0.2)  # longer than the failing one needs
        ended.append(index)

    with pytest.raises(LookupError):
        parallel_apply([work] * 3, [0, 1, 2], devices=["cpu"] * 3)
    assert sorted(ended) == [index for index in range(3) if index != failing]


def test_next_call_works_and_has_its_own_modes_after_an_exception():
    usual = modes()
    with torch.inference_mode(), pytest.raises(LookupError):
        parallel_apply([fail] * 2, [LookupError(1), LookupError(2)], devices=["cpu"] * 2)
    assert parallel_apply([modes] * 2, [()] * 2, devices=["cpu"] * 2) == [usual, usual]


def test_interrupt_stops_the_modules_and_leaves_the_devices_usable():
    started, ended = threading.Barrier(3), []

    def work(index):
        started.wait(WAIT_S)
        try:
            for _ in range(WAIT_S * 100):
                time.sleep(0.01)
        finally:
            ended.append(index)

    def press_ctrl_c():
        started.wait(WAIT_S)
        time.sleep(0.3)  # the main thread waits by now
        _thread.interrupt_main()

    threading.Thread(target=press_ctrl_c, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        parallel_apply([work] * 2, [0, 1], devices=["cpu"] * 2)
    assert sorted(ended) == [0, 1]
    all_there = threading.Barrier(2)
    parallel_apply([all_there.wait] * 2, [(WAIT_S,)] * 2, devices=["cpu"] * 2)


# With GPUs: torch's own function gives the same. The twins of these tests are those above.


def on_gpus(verb, places, devices, *, named):
    torch.manual_seed(0)
    modules = [nn.Bilinear(3, 3, 2).to(device) for device in devices]
    inputs = [(torch.randn(4, 3).to(device), torch.randn(4, 3).to(device)) for device in devices]
    outputs = verb(modules, inputs, [{}] * len(devices), places if named else None)
    sum(output.square().sum().cpu() for output in outputs).backward()
    return outputs, [parameter.grad for module in modules for parameter in module.parameters()]


@pytest.mark.parametrize("named", [True, False], ids=["devices named", "devices left out"])
@pytest.mark.parametrize("devices", ALL_GPUS)
def test_outputs_and_gradients_are_those_of_torch_on_gpus(devices, named):
    ours = on_gpus(parallel_apply, devices, devices, named=named)
    theirs = on_gpus(nn.parallel.parallel_apply, indices(devices), devices, named=named)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("devices", GPUS)
def test_modes_hold_on_gpus_too(devices):
    modules = [nn.Linear(2, 2).to(device) for device in devices]
    inputs = [torch.ones(1, 2, device=device) for device in devices]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs = parallel_apply(modules, inputs, devices=devices)
    assert [output.dtype for output in outputs] == [torch.bfloat16] * len(devices)
    with torch.inference_mode():
        outputs = parallel_apply(modules, inputs, devices=devices)
    assert all(output.is_inference() for output in outputs)
