"""Exercises of page `parallel_apply`: parallel_apply, replicas, the four verbs."""

import copy
import threading
import time
from concurrent.futures import as_completed  # noqa: F401 (a wrong answer uses it)
from contextlib import nullcontext, suppress
from functools import partial
from unittest import mock

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import nn
from torch.func import functional_call

from mpcourse.data_parallel import gather, parallel_apply, replicas, replicate, scatter
from mpcourse.data_parallel import scatter_gather as verbs
from mpcourse.devices.devices import Device, get_devices
from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    call,
    expected_and_got,
    refuse_borrowed,
    same,
    short,
)

# 1. parallel_apply


def my_parallel_apply(modules, inputs, devices):
    """The caller asks for its own grad mode, and each worker sets it in a with block.

    The block sets it back, also after an error. `result()` raises what the module raised.
    """
    gradients = torch.is_grad_enabled()

    def call(module, value):
        with torch.set_grad_enabled(gradients):
            return module(value)

    pairs = zip(devices, modules, inputs, strict=True)
    results = [device.submit(call, module, value) for device, module, value in pairs]
    return [result.result() for result in results]


def shown(outputs):
    """The outputs as numbers, or what else is there by its type."""
    if not isinstance(outputs, list | tuple):
        return type(outputs).__name__
    return [o.tolist() if torch.is_tensor(o) else type(o).__name__ for o in outputs]


def what_differs(outcome, expected):
    differ = [key for key in expected if not same(outcome[key], expected[key])]
    return [f"{key}: " + ", ".join(expected_and_got(outcome[key], expected[key])) for key in differ]


def at_the_same_time(attempt, given, count, gradients, broken, own=True):
    """What came out, which module ran where and how, and the grad modes afterwards."""
    devices = get_devices(count)
    for device in devices:
        device.run(torch.set_grad_enabled, own)
    barrier, calls = threading.Barrier(2), [[] for _ in devices]

    def module_of(number, device):
        weight = torch.full((1,), 10.0**number, device=device.device, requires_grad=True)

        def module(value):
            if count == 2:
                barrier.wait(timeout=1.0)
            time.sleep(0.1 if number == 0 else 0.0)
            in_place = device.name in threading.current_thread().name
            calls[number].append((in_place, torch.is_grad_enabled()))
            if number in broken:
                raise KeyError("no such layer")
            return value * weight

        return module

    modules = [module_of(*each) for each in enumerate(devices)]
    inputs = [torch.tensor([n + 1.0, 0.0], device=d.device) for n, d in enumerate(devices)]
    try:
        with torch.set_grad_enabled(gradients):
            try:
                outputs = attempt(modules, inputs, devices)
                if broken:
                    raise NotYet(
                        f"it returned {shown(outputs)}; what a module raises has to come out."
                    )
            except KeyError as error:
                if not broken:
                    raise
                outputs = [repr(error)]
            except Exception as error:
                if isinstance(error.__context__, KeyError):
                    came = f"the module raised KeyError, and {type(error).__name__} came out."
                    raise NotYet(came, AS_IT_IS) from None
                raise
            callers = torch.is_grad_enabled()
    finally:  # the workers serve others, too
        afterwards = [device.run(torch.is_grad_enabled) for device in devices]
        for device in devices:
            device.run(torch.set_grad_enabled, True)
    if broken and not gradients:
        refuse_borrowed(attempt, {"parallel_apply"}, "use device.submit.")
    listed = outputs if isinstance(outputs, list | tuple) else []
    return {
        "outputs": shown(outputs),
        "(on its device, gradients on) in each call": [sorted(each) for each in calls],
        "gradients on afterwards": {"caller": callers, "workers": afterwards},
        "outputs lead back": [torch.is_tensor(o) and o.requires_grad for o in listed],
        "inference tensors": any(torch.is_tensor(o) and o.is_inference() for o in listed),
    }


NEVER_MET = "One waited for the other: submit all first, each to its device, and lock nothing."
AS_IT_IS = "Let the module's own error come out as it is."
CALL, BACK = "return module(value)", "it = module(value); torch.set_grad_enabled(True); return it"
MODE, BLOCK = "torch.set_grad_enabled(gradients)", "with torch.set_grad_enabled(gradients):"
TRY = "try:\n            torch.set_grad_enabled(gradients)"


def set_back(mode):
    """A change of the solution: what the worker's mode is set to after each call."""
    return f"{CALL} => {CALL}\n        finally:\n            torch.set_grad_enabled({mode})"


check_parallel_apply = Exercise(
    my_parallel_apply,
    read_again='"Hand over all, then wait"',
    cases=[
        ("one module", 1, True, ()),
        ("two modules that wait for each other, the first slow", 2, True, ()),
        ("three modules", 3, True, ()),
        ("two modules, of which the second raises KeyError", 2, True, (1,)),
        ("two modules, called under torch.no_grad()", 2, False, ()),
        ("two modules that raise KeyError, called under torch.no_grad()", 2, False, (0, 1)),
        ("two modules, in workers whose own mode was off before", 2, True, (), False),
    ],
    given="{0}",
    play=at_the_same_time,
    compared=what_differs,
    errors={
        "a worker runs functions": "Hand over the function and its arguments: submit(call, …).",
        "BrokenBarrier": NEVER_MET,
        "IndexError": "Take as many as there are.",
        "takes 1 positional": "Each module takes its input as one argument: module(value).",
        "must be bool": "Ask with brackets: torch.is_grad_enabled() gives the caller's mode.",
        "attribute 'submit'": "submit belongs to a device: zip gives values in its lists' order.",
        "was stopped": "Wait only by .result(): it waits, and raises what was raised.",
    },
    hint="modules[i](inputs[i]) is called once, by devices[i], in the caller's grad mode.",
    correct="At the same time, in order, with the caller's grad mode, errors coming out.",
    wrong={
        NEVER_MET: [
            ("device.submit => device.run", "result.result() => result"),
            ("pairs = => lock = threading.Lock(); pairs =", f"{CALL} => with lock: {CALL}"),
        ],
        "Those are no values yet: ask each for its result.": "result.result() => result",
        "A method came back, not its value: call it, result.result().": (
            "result.result() for => result.result for"
        ),
        "Ask with brackets": "is_grad_enabled() => is_grad_enabled",
        "submit belongs to a device": "zip(devices, modules => zip(modules, devices",
        "Nothing comes back: return the list of the outputs.": "return [result => [result",
        "Each thread has a mode: ask in the caller, set in the worker.": "d(gradients) => d(True)",
        "Gradients are off in the worker, but on in the caller.": "d(gradients) => d(False)",
        "Gradients stay off in the worker: its function makes and enters the with block itself.": [
            "with torch => if torch",
            (
                f"{BLOCK} => with mode:",
                "pairs = => mode = torch.set_grad_enabled(gradients); pairs =",
            ),
            ("with torch => if torch", f"{CALL} => {BACK}"),
            ("with torch => if torch", f"{CALL} => {BACK.replace('True', 'not gradients')}"),
        ],
        "A worker's own mode may be off: set back what it was, not True.": (
            f"{BLOCK} => {TRY}",
            set_back(True),
        ),
        "A worker's own mode may be off: set the caller's also where that is on.": (
            f"{BLOCK} => with nullcontext() if gradients else torch.no_grad():"
        ),
        AS_IT_IS: f"{CALL} => try: {CALL}\n            except KeyError: raise ValueError",
        "A detached output has no way back, so all gradients are lost: return it as it is.": (
            "result.result() for => result.result().detach() for"
        ),
        "inference_mode does more: set the grad mode.": "set_grad_enabled( => inference_mode(not ",
        "raises has to come out": f"{CALL} => try: {CALL}\n            except KeyError: pass",
        "The worker's function has to return what the module returns.": "return module => module",
        "Its device's worker runs each module: submit it.": lambda m, v, _: [*map(call, m, v)],
        "Outputs come in the order of the modules.": "in results => in as_completed(results)",
        "Return a list of the outputs.": [
            "[result.result() for result in results] => (each.result() for each in results)",
            "[result.result() for result in results] => dict.fromkeys(results)",
            "[result.result() for result in results] => torch.stack([r.result() for r in results])",
        ],
        "The caller's own mode stays as it is.": "pairs = => torch.set_grad_enabled(True); pairs =",
        "The caller's mode changed: each thread has its own, so set it in the worker.": (
            f"{BLOCK} => if True:",
            "pairs = => torch.set_grad_enabled(False); pairs =",
            "return [result => values = [result",
            "in results] => in results]; torch.set_grad_enabled(True); return values",
        ),
        "The loop's variables had moved on when the worker ran: pass them to submit.": [
            "(call, module, value) => (lambda: time.sleep(0.05) or call(module, value))",
            "(call, module, value) => (lambda it: time.sleep(0.05) or call(module, it), value)",
        ],
    },
    also_right=[
        f"{CALL} => return {MODE}(module)(value)",
        (
            f"{BLOCK} => before = torch.is_grad_enabled()\n        {TRY}",
            set_back("before"),
        ),
    ],
)

# 2. Replicas


def my_replicas(net, devices):
    """Autograd records `.to`, so gradients of the copies flow back to net's own weights.

    It does not record a deep copy, which serves as the shell to call, one for each device.
    """

    def replica_on(device):
        shell = copy.deepcopy(net).to(device.device)
        weights = {name: w.to(device.device, copy=True) for name, w in net.named_parameters()}
        return lambda rows: functional_call(shell, weights, rows)

    return [replica_on(device) for device in devices]


class Calls(list):
    """One list for a module and all its copies, deep ones too."""

    wanted = 0  # that many calls wait for one another

    def __deepcopy__(self, memo):
        return self


class Noting(nn.Module):
    """A linear layer and a buffer; it notes each call.

    What it notes: the copy, its weight, thread, rows, where its buffer lies, if others came.
    """

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.float64)
        self.register_buffer("shift", torch.ones(2, dtype=torch.float64))
        self.calls = Calls()

    def forward(self, batch):
        """Note the call, wait for the others, then compute."""
        for name, value in vars(self).items():
            if torch.is_tensor(value):  # by functional_call, which takes any name without a dot
                raise AttributeError(f"Noting has no attribute `{name}`")
        thread = threading.current_thread().name
        self.calls.append(
            [self, self.linear.weight, thread, len(batch), self.shift.device.type, False]
        )
        patience_s = 2.0 if "device" in thread else 0.0  # beside no worker nobody comes
        number, until = len(self.calls) - 1, time.monotonic() + patience_s
        while len(self.calls) < self.calls.wanted and time.monotonic() < until:
            time.sleep(1e-3)
        self.calls[number][-1] = len(self.calls) >= self.calls.wanted
        return torch.tanh(self.linear(batch) + self.shift)


APART = [Device(0, torch.device(n), "cpu core", n) for n in ("cpu", "meta")]  # as two GPUs are


def noting_and_batch(rows, place):
    torch.default_generator.manual_seed(rows)
    batch = torch.arange(3.0 * rows, dtype=torch.float64, device=place).reshape(rows, 3) / rows
    return Noting().to(place), batch.requires_grad_()


def gradients_of(outputs, tensors):
    found = torch.autograd.grad(outputs.square().sum(), tensors, allow_unused=True)
    return ["none" if each is None else each for each in found]


def replicas_at_work(attempt, rows, count):
    """Outputs, gradients, and how many copies of the weights were at work."""
    devices = get_devices(count)
    module, batch = noting_and_batch(rows, devices[0].device)
    found = attempt(module, devices)
    functions = isinstance(found, list | tuple) and found and all(map(callable, found))
    if not functions or len(found) != count:
        why = PER_DEVICE if functions else FUNCTIONS
        raise NotYet(f"expected {count} functions of the rows, got {short(found)}", why)
    module.calls.wanted = count
    outputs = gather(parallel_apply(found, scatter(batch, devices), devices=devices), devices[0])
    module.calls.wanted, together = 0, all(met for *_, met in module.calls)
    refuse_borrowed(attempt, {"replicate", "DataParallel"}, "copy each weight with .to.")
    networks = {id(each.linear) for each, *_ in module.calls}  # a copy.copy has net's own
    if id(module.linear) in networks:  # said here: what two threads make of it is chance
        raise NotYet(ITSELF if any(each is module for each, *_ in module.calls) else SHALLOW)
    if not networks:
        raise NotYet(UNCALLED)
    if len(networks) < count:
        raise NotYet(SHARED, LATER)
    for replica, place in zip(attempt(module, APART), APART, strict=True) if count == 1 else []:
        with suppress(Exception):  # the call is noted before it fails
            replica(batch.detach().to(place.device))
    used = [weight for _, weight, *_ in module.calls[:count]]
    memory = {weight.data_ptr() for weight in used}
    return {
        "outputs": outputs,
        "at the same time": together,
        "gradients of weights and rows": gradients_of(outputs, [*module.parameters(), batch]),
        "copies of the weights": len(memory - {module.linear.weight.data_ptr()}),
        "precision": [str(weight.dtype).removeprefix("torch.") for weight in used],
        "copies for cpu and meta": [weight.device.type for _, weight, *_ in module.calls[count:]],
        "buffers for cpu and meta": [where for *_, where, _ in module.calls[count:]],
        "net's mode": all(each.training for each, *_ in module.calls),
    }


FUNCTIONS = "Return a list of functions: whoever has the rows calls them."
PER_DEVICE = "Return a function for each device, however many there are."
ITSELF = "The replicas call net itself: give each a deep copy."
SHALLOW = "copy.copy gives a network with net's own layers: each replica needs a deep copy."
UNCALLED = "No replica called a network: each calls a deep copy of net, whatever its layers are."
SHARED = "All replicas called one deep copy: each needs its own."
ELSEWHERE = "A copy lies on another device than its rows: .to(device.device, copy=True)."
CUT_OFF = "Nothing may cut the way back: no detach, no no_grad."
LATER = "Made in a loop? A lambda that runs later finds what the loop made last."
SHELL, THERE = "shell = copy.deepcopy(net)", ".to(device.device)"
COPIES = "weights = {name: w.to(device.device, copy=True) for name, w in net.named_parameters()}"

check_replicas = Exercise(
    my_replicas,
    read_again='"One network on two devices"',
    cases=[(6, 2), (7, 3), (2, 1)],
    given="a batch of {} rows and {} device(s)",
    play=replicas_at_work,
    compared=what_differs,
    correct="Each device has its own replica, and all gradients reach the network's own weights.",
    errors={
        r"got \(Device": "torch's name for the place is device.device: .to(device.device, …).",
        "to be a tensor|NoneType|joins": "A replica gives back what functional_call gives back.",
        "dicts to be a dict,": "The rows come last: functional_call(network, weights, rows).",
        "dictionar": "functional_call takes a dict: the name of each weight, and its copy.",
        "same device": f"{ELSEWHERE} {LATER}",
        "not require grad": CUT_OFF,
        "missing 1": FUNCTIONS,
        "non cpu|CPU tensors": "torch's replicate takes GPUs only: copy each weight with .to.",
        "has no attribute `": "A weight has another name than net.named_parameters() gives it.",
    },
    hint=f"Each replica calls a deep copy of its own, with its own copy of the weights. {LATER}",
    wrong={
        "Copy net's own weights: deepcopy, detach, no_grad, state_dict, Parameter cut the way.": [
            "def replica_on => @torch.no_grad()\n    def replica_on",
            "net.named_parameters() => shell.named_parameters()",
            "w.to => w.detach().to",
            "net.named_parameters() => net.state_dict().items()",
            "return lambda rows: => return shell.to(device.device) or",
            "w.to(device.device, copy=True) => nn.Parameter(w.to(device.device, copy=True))",
        ],
        "A weight has another name": [
            "{name: w => {'net.' + name: w",
            "in net.named_parameters() => in net.linear.named_parameters()",
        ],
        "Only replica 0 leads back to net. (named_parameters() is read once: list() keeps it.)": (
            "in net.named_parameters() => in named",
            "def replica_on => named = net.named_parameters()\n\n    def replica_on",
        ),
        "A replica reads net's own memory: copy=True copies on any device.": ", copy=True => ",
        "Replica 0 reads net's own weights, as in the package; here it needs copies too.": (
            "copy=True => copy=device is not devices[0]"
        ),
        "The replicas compute in net's own precision: nothing turns weights into floats.": (
            "w.to(device.device => w.float().to(device.device",
            "weights, rows) => weights, rows.float())",
        ),
        "Only half of each gradient arrives: parts add up. Divide nothing, detach nothing.": (
            "w.to(device.device => (w / 2 + w.detach() / 2).to(device.device"
        ),
        "The copies read net's own memory, and .data or detach cuts the way: .to, copy=True.": (
            "w.to(device.device, copy=True) => w.data"
        ),
        ELSEWHERE: [
            "w.to(device.device, copy=True) => w.clone()",
            ("w.to(device.device, copy=True) => w.clone()", f"{SHELL}{THERE} => {SHELL}"),
        ],
        "A deep copy moves to its device too: there lie its buffers.": f"{SHELL}{THERE} => {SHELL}",
        "A replica stays in net's mode: after .eval(), dropout is off.": (
            f"{SHELL}{THERE} => {SHELL}{THERE}.eval()"
        ),
        CUT_OFF: "weights, rows) => weights, rows).detach()",
        "The rows get a gradient, too.": "weights, rows) => weights, rows.detach())",
        "The rows come last": "weights, rows) => rows, weights)",
        "A replica gives back": "functional_call(shell => device.submit(functional_call, shell",
        "The outputs are net's own: nothing divides them.": "rows) => rows) / len(devices)",
        UNCALLED: lambda net, devices: [
            partial(nn.functional.linear, weight=net.linear.weight, bias=net.linear.bias)
            for _ in devices
        ],
        "Biases are parameters, too.": "parameters()} => parameters() if 'weight' in name}",
        ITSELF: "copy.deepcopy(net) => net",
        SHALLOW: "copy.deepcopy => copy.copy",
        SHARED: [(f"{SHELL}{THERE} => ", f"def replica_on => {SHELL}\n    def replica_on")],
        PER_DEVICE: "for device in devices] => for device in devices[:1]]",
        FUNCTIONS: ["return [ => return lambda: [", "return lambda rows: => return weights or"],
        "All replicas use one copy of the weights: make one for each device.": (
            f"{COPIES} => ",
            f"def replica_on => device = devices[0]\n    {COPIES}\n\n    def replica_on",
        ),
        "One replica waits for the other: nothing may lock the calls.": (
            "def replica_on => lock = threading.Lock()\n\n    def replica_on",
            "rows: => rows: [lock.acquire(),",
            "rows) => rows), lock.release()][1]",
        ),
    },
    also_right=[
        "w.to(device.device, copy=True) => w.clone().to(device.device)",
        "net.named_parameters() => net.state_dict(keep_vars=True).items()",
        ("= {name: w => = device.run(lambda: {name: w", "parameters()} => parameters()})"),
    ],
)

# 3. The four verbs


def my_data_parallel(module, batch, devices):
    """Scatter first: how many chunks come out says how many devices are used.

    `replicate` keeps the way back to the weights.
    """
    chunks = scatter(batch, devices)
    used = devices[: len(chunks)]
    outputs = parallel_apply(replicate(module, used), chunks, devices=used)
    return gather(outputs, devices[0])


def on_devices(attempt, rows, count):
    """Outputs, gradients, and how many devices and networks were at work, where and when."""
    devices = get_devices(count)
    module, batch = noting_and_batch(rows, devices[0].device)
    wanted = module.calls.wanted = -(-rows // -(-rows // count))
    with mock.patch.object(verbs, "_gather", wraps=verbs._gather) as joined:
        outputs = attempt(module, batch, devices)
    if not torch.is_tensor(outputs):
        raise NotYet(f"expected one tensor, got {short(outputs)}", "Return what gather joins.")
    refuse_borrowed(attempt, {"DataParallel", "data_parallel"}, "use the four verbs.")
    if any(each.grad is not None for each in (*module.parameters(), batch)):
        raise NotYet("afterwards there are gradients in .grad", NO_BACKWARD)
    return {
        "outputs": outputs,
        "gradients of weights and batch": gradients_of(outputs, [*module.parameters(), batch]),
        "rows of each thread": sorted(call[2:4] for call in module.calls),
        "a network for each": len({id(each) for each, *_ in module.calls}) >= wanted,
        "at the same time": all(met for *_, met in module.calls),
        "joined on the first device": all(c.args[1] == devices[0] for c in joined.call_args_list),
        "after new weights": follows(attempt, module, batch, devices),
        "on two GPUs": "fine" if count > 1 else apart(attempt),
        "the module's mode": module.training,
    }


KEPT = "The weights changed after your replicas were made: make new ones in each call."


def follows(attempt, module, batch, devices):
    """Whether the next call computes with weights that an optimizer has changed in place."""
    with torch.no_grad():
        weight = next(module.parameters())
        weight.mul_(2)
        outputs = attempt(module, batch, devices)
        found = torch.is_tensor(outputs) and same(outputs, module(batch))
        weight.div_(2)
    return found


NO_BACKWARD = "A forward pass runs no backward: that is for whoever has the loss."


def apart(attempt):
    """What fails on cpu and meta, which meet as rarely as two GPUs, if the outputs get home."""
    modes = {"capture_modes": lambda _: {}, "modes_set": lambda *_: nullcontext()}
    try:  # autocast, one of the modes, does not know meta
        with mock.patch.multiple(replicas, **modes):
            attempt(*noting_and_batch(6, "cpu"), APART)
    except NotImplementedError:  # a copy out of meta, which holds no numbers
        return "fine"
    except Exception as error:
        said = "no device is named" if "no device 'meta'" in str(error) else "joining fails"
        return "a replica fails" if hasattr(error, "__notes__") else said
    return "one is not used"


check_data_parallel = Exercise(
    my_data_parallel,
    read_again='"DataParallel, out of four verbs"',
    cases=[(7, 2), (5, 4), (6, 1)],
    given="a batch of {} rows and {} device(s)",
    play=on_devices,
    compared=what_differs,
    correct="Outputs and gradients are those of the module alone.",
    errors={
        "inputs 7": "Hand over the chunks, not the batch itself.",
        "devices is a list": "scatter and replicate take the devices themselves, in a list.",
        "same length": "There may be fewer chunks than devices. Use devices[: len(chunks)].",
        "not require grad": CUT_OFF,
        "cannot be multiplied": "Leave dim as it is: a chunk holds whole rows.",
        "stack expects": "gather joins rows of unequal chunks; stack makes a new dimension.",
        "has no len": "parallel_apply takes a list of modules: one replica for each chunk.",
        r"got \[Device": "gather takes one device: gather(outputs, devices[0]).",
        "devices are named": "The third argument of parallel_apply is another: write devices=….",
    },
    hint="Each device gets a replica and a chunk; gather joins all outputs, on devices[0].",
    wrong={
        "There may be fewer chunks than devices.": [
            "devices[: len(chunks)] => devices",
            "scatter(batch, devices) => [*scatter(batch, devices), batch[:0]][: len(devices)]",
        ],
        "Say where: parallel_apply(…, devices=used).": ", devices=used => ",
        "Device 2 got no rows: use as many devices as there are chunks, not only two.": (
            "chunks = => devices = devices[:2]; chunks ="
        ),
        "Leave dim as it is": "scatter(batch, devices) => scatter(batch, devices, dim=1)",
        "stack makes a new dimension": "gather(outputs, devices[0]) => torch.stack(outputs)",
        "The rows that do not divide are missing: the last chunk may be smaller.": (
            "chunks = => batch = batch[: len(batch) - len(batch) % len(devices)]; chunks ="
        ),
        "All chunks ran on the first device: name one for each chunk.": (
            "devices[: len(chunks)] => devices[:1] * len(chunks)"
        ),
        "Return what gather joins.": "gather(outputs, devices[0]) => outputs",
        "On GPUs each needs its own replica.": "replicate(module, used) => [module] * len(used)",
        "The gradients do not reach the module's own weights: copy with replicate.": (
            lambda m, b, d: my_data_parallel(copy.deepcopy(m), b, d)
        ),
        "Each device computed the whole batch: hand each its own chunk.": (
            "chunks, devices => [batch] * len(chunks), devices",
            "gather(outputs, devices[0]) => outputs[0]",
        ),
        "No worker computes its chunk: parallel_apply hands all of them over.": (
            "parallel_apply( => (lambda f, x, devices: [*map(call, f, x)])("
        ),
        "A loop over the chunks calls the module itself, in one thread: replicas work at once.": (
            lambda m, b, d: torch.cat([m(chunk) for chunk in scatter(b, d)])
        ),
        "A forward pass leaves the module in its mode: no eval().": (
            "chunks = => module.eval(); chunks ="
        ),
        NO_BACKWARD: (
            "return gather(outputs, devices[0]) => whole = gather(outputs, devices[0]); "
            "whole.sum().backward(retain_graph=True); return whole"
        ),
        "The batch gets no gradient.": "scatter(batch => scatter(batch.detach()",
        "A replica and its rows lie apart: scatter moves rows, replicate weights and buffers.": (
            "scatter(batch, devices) => batch.split(-(-len(batch) // len(devices)))"
        ),
        KEPT: (
            "replicate(module, used) => KEEP.setdefault(module, replicate(module, used))",
            "chunks = => KEEP = vars(module).setdefault('kept', {}); chunks =",
        ),
        "Outputs on two GPUs cannot be joined where they lie: gather brings them to one.": (
            "gather(outputs, devices[0]) => torch.cat(outputs).to(devices[0].device)"
        ),
        "The outputs belong on the first device, devices[0].": "devices[0] => devices[-1]",
        "The module alone computed all rows: scatter them, and replicate it.": lambda m, b, _: m(b),
        "gather joins rows and adds nothing up: nothing is to be divided.": (
            "gather(outputs, devices[0]) => gather(outputs, devices[0]) / len(chunks)"
        ),
        "gather joins all outputs, in order.": "gather(outputs => gather(outputs[::-1]",
        "Take the chunks that scatter makes: five rows on four devices are 2 + 2 + 1.": [
            "scatter(batch, devices) => batch.tensor_split(len(devices))",
            (
                "chunks = => k, last = len(batch) // len(devices), len(devices) - 1; chunks =",
                "scatter(batch, devices) => [*(batch[i * k : (i + 1) * k] for i in range(last)), "
                "batch[last * k :]]",
            ),
        ],
        "Take the first devices, devices[: len(chunks)].": "[: len(chunks)] => [-len(chunks) :]",
        "One call of parallel_apply for each chunk waits for it: hand all to one call.": (
            "parallel_apply( => (lambda f, x, devices: [parallel_apply([a], [b], devices=[d])[0] "
            "for a, b, d in zip(f, x, devices)])("
        ),
    },
    also_right=[
        "gather(outputs, devices[0]) => torch.cat([o.to(devices[0].device) for o in outputs])"
    ],
)
