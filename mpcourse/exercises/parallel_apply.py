"""Exercises of page `parallel_apply`: parallel_apply, replicas, four verbs, a shared step."""

import concurrent.futures
import contextlib
import copy
import threading
import time
from typing import NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.func import functional_call

from mpcourse.data_parallel import (
    DataParallel,
    gather,
    parallel_apply,
    replicate,
    scatter,
    scatter_gather,
)
from mpcourse.devices.devices import get_devices
from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    expected_and_got,
    raised,
    refuse_borrowed,
    same,
    short,
)

# 1. parallel_apply


def my_parallel_apply(modules, inputs, devices):
    """First hand everything over, then ask for the results, in the order of the modules.

    The grad mode belongs to a thread, so the caller asks for its own and each worker sets it, in a
    with block: that sets it back, also after an error. `result()` raises what the module raised.
    """
    gradients = torch.is_grad_enabled()

    def call(module, value):
        with torch.set_grad_enabled(gradients):
            return module(value)

    pairs = zip(devices, modules, inputs, strict=True)
    results = [device.submit(call, module, value) for device, module, value in pairs]
    return [result.result() for result in results]


FINISHING = "Outputs come in the order of the modules, not in the order of finishing."
MOVED_ON = "The loop's variables had moved on when the worker ran: pass them to submit."
OWN_INPUT = "Each module has its own input: inputs[i] goes to modules[i]."
CALLED = "Hand over the function and its arguments, not what it returned: submit(call, …)."
NO_VALUES = "Those are no values yet: ask each for its result."
HAND_OVER = "devices[i].submit(…) hands it over."
NEVER_MET = "they never met: the first was waited for before the second was handed over."
FIRST_SUBMIT = "First submit all of them, then ask for the results."
NO_RETURN = "What is handed over has to return the module's output, in every mode."
AS_MANY = "Take as many as there are."
ITS_TYPE = "The error should keep its type."
SWALLOWED = "The error was swallowed; the caller has to see it."
OF_A_THREAD = "the outputs require gradients: grad mode belongs to a thread, not to the program."
CUT_OFF = "The outputs were cut off afterwards, but the workers still built graphs: set their mode."
STAYS_OFF = "gradients stay off in the worker for all later work: set the mode in a with block."
LEFT_OFF = "after a module that raised, gradients stay off in its worker: use a with block."
A_LIST = "Return a list with one output for each module."
NO_GRADIENTS = "Called with gradients on: the outputs require none."
INFERENCE = "Those are inference tensors, which no later graph may use: set the grad mode alone."
CALLERS = "After the call, the caller's own grad mode was another one: set it in the workers alone."
ONE_ARGUMENT = "A star takes the input apart, row by row: hand it over whole."


def numbers(outputs):
    tensors = isinstance(outputs, list | tuple) and all(torch.is_tensor(o) for o in outputs)
    return [float(output.detach().sum()) for output in outputs] if tensors else outputs


def order(attempt, devices, inputs):
    def slow(value):
        time.sleep(0.1)
        return value * 10

    got = numbers(attempt([slow, lambda value: value * 100], inputs, devices))
    if got == [10.0, 200.0]:
        return got
    known = {(200.0, 10.0): FINISHING, (200.0, 200.0): MOVED_ON}
    known |= dict.fromkeys([(10.0, 100.0), (20.0, 200.0), (10.0, 20.0)], OWN_INPUT)
    no_list = got is not None and not isinstance(got, list | tuple)
    words = A_LIST if no_list or got in ([10.0], [200.0]) else ""
    if isinstance(got, list) and len(got) > 1:
        words = known.get(tuple(got), "") if isinstance(got[0], float) else NO_VALUES
    if isinstance(got, list) and any(isinstance(each, list) for each in got):
        words = OWN_INPUT
    if got == [None, None]:
        words = NO_RETURN
    raise NotYet(*expected_and_got(got, [10.0, 200.0]), words)


def places(attempt, devices, inputs):
    threads = {}

    def noting(number):
        def module(value):
            threads[number] = threading.current_thread().name
            return value

        return module

    attempt([noting(0), noting(1)], inputs, devices)
    for number, device in enumerate(devices):
        if device.name not in threads.get(number, ""):
            line = f"modules[{number}] ran in {threads.get(number)!r}, not in {device}'s worker."
            raise NotYet(line, HAND_OVER)
    return [device.name in threads[number] for number, device in enumerate(devices)]


def together(attempt, devices, inputs):
    barrier = threading.Barrier(2)

    def meet(value):
        barrier.wait(timeout=1.0)
        return value

    try:
        return numbers(attempt([meet, meet], inputs, devices))
    except threading.BrokenBarrierError:
        raise NotYet(NEVER_MET, FIRST_SUBMIT) from None


def counts(attempt, devices, inputs):
    for count in (1, 3):
        used = get_devices(count)
        given = [torch.tensor([n + 1.0], device=d.device) for n, d in enumerate(used)]
        found = numbers(attempt([torch.neg] * count, given, used))
        if found != [-n for n in range(1, count + 1)]:
            raise NotYet(f"expected {count} outputs, got {short(found)}", AS_MANY)
    return found


def broken(value):
    raise KeyError("no such layer")


def left_on(devices):
    """Whether each worker has gradients on, which all have afterwards."""
    modes = [device.run(torch.is_grad_enabled) for device in devices]
    for device in devices:
        device.run(torch.set_grad_enabled, True)
    return modes


def errors(attempt, devices, inputs):
    for modules in ([torch.neg, broken], [broken, torch.neg]):
        try:
            outputs = attempt(modules, inputs, devices)
        except KeyError as error:
            found = str(error)
        except Exception as error:
            raise NotYet(raised(error), ITS_TYPE) from None
        else:
            raise NotYet(f"got {short(outputs)}", SWALLOWED)
    return found


def grad_mode(attempt, devices, inputs):
    weights = [torch.ones(1, device=d.device, requires_grad=True) for d in devices]
    in_workers = []

    def module_of(weight):
        return lambda value: in_workers.append(torch.is_grad_enabled()) or value * weight

    modules = [module_of(weight) for weight in weights]
    with torch.no_grad():
        outputs = attempt(modules, inputs, devices)
        kept = not torch.is_grad_enabled()
    modes = left_on(devices)
    if any(output.requires_grad for output in outputs):
        raise NotYet(OF_A_THREAD, "Who knows the caller's mode, and who has to set it?")
    if any(in_workers):
        raise NotYet("called under no_grad, a module found the gradients on.", CUT_OFF)
    if not all(modes):
        raise NotYet(STAYS_OFF)
    if any(output.is_inference() for output in outputs):
        raise NotYet(INFERENCE)
    outputs = attempt(modules, inputs, devices)
    if not kept or not torch.is_grad_enabled():
        raise NotYet(CALLERS)
    if not all(output.requires_grad for output in outputs):
        raise NotYet(NO_GRADIENTS)
    return numbers(outputs), in_workers, modes


def errors_without_gradients(attempt, devices, inputs):
    with torch.no_grad(), contextlib.suppress(KeyError):
        attempt([broken, broken], inputs, devices)
    modes = left_on(devices)
    if not all(modes):
        raise NotYet(LEFT_OFF)
    return modes


def by_hand(attempt, devices, inputs):
    refuse_borrowed(attempt, {"parallel_apply"}, "use device.submit.")
    return numbers(attempt([torch.neg, torch.exp], inputs, devices))


def in_a_trial(attempt, given, trial):
    devices = get_devices(2)
    inputs = [torch.tensor([n + 1.0, 0.0], device=d.device) for n, d in enumerate(devices)]
    with torch.enable_grad():  # whatever mode an attempt leaves behind, the next one finds it on
        return trial(attempt, devices, inputs)


RESULTS = "[result.result() for result in results]"
MODE = "with torch.set_grad_enabled(gradients)"

check_parallel_apply = Exercise(
    my_parallel_apply,
    read_again='"Which output comes first?"',
    cases=[
        ("a slow module and a fast one", order),
        ("two modules on two devices", places),
        ("two modules that wait for each other", together),
        ("one module, and three modules", counts),
        ("one of two modules raises KeyError", errors),
        ("modules with weights, called under torch.no_grad()", grad_mode),
        ("modules that raise KeyError, called under torch.no_grad()", errors_without_gradients),
        ("the source of the function", by_hand),
    ],
    given="{0}",
    play=in_a_trial,
    errors={
        "a worker runs functions": CALLED,
        "but 2 were given": ONE_ARGUMENT,
        "IndexError": AS_MANY,
    },
    correct="At the same time, in order, with the caller's grad mode, errors coming out.",
    wrong={
        FINISHING: "in results => in concurrent.futures.as_completed(results)",
        MOVED_ON: "(call, module, value) => (lambda: time.sleep(0.05) or call(module, value))",
        OWN_INPUT: [
            "call, module, value => call, module, inputs[0]",
            "call, module, value => call, module, inputs",
            "call, module, value => call, modules[0], value",
        ],
        CALLED: "(call, module, value) => (call(module, value))",
        NO_VALUES: f"{RESULTS} => results",
        NO_RETURN: "return module => module",
        HAND_OVER: [
            lambda m, i, d: [*concurrent.futures.ThreadPoolExecutor().map(lambda f, x: f(x), m, i)],
            "device.submit => devices[0].submit",
        ],
        FIRST_SUBMIT: ("device.submit => device.run", f"{RESULTS} => results"),
        AS_MANY: ["in pairs => in [*pairs][:2]", "in results] => in (results[0], results[1])]"],
        ITS_TYPE: f"return {RESULTS} => try: return {RESULTS}\n    except KeyError: 1 / 0",
        SWALLOWED: "result.result() for => None if result.exception() else result.result() for",
        OF_A_THREAD: f"{MODE}: => if True:",
        CUT_OFF: (
            f"{MODE}: => if True:",
            f"{RESULTS} => [each if gradients else each.detach() for each in {RESULTS}]",
        ),
        STAYS_OFF: "with torch => if torch",
        LEFT_OFF: (
            "with torch => if torch",
            "return module(value) => return (module(value), torch.set_grad_enabled(True))[0]",
        ),
        A_LIST: [
            f"{RESULTS} => results[0].result()",
            "in results => in results[:1]",
            f"{RESULTS} => torch.stack({RESULTS})",
            f"{RESULTS} => (result.result() for result in results)",
        ],
        NO_GRADIENTS: "torch.set_grad_enabled(gradients) => torch.no_grad()",
        INFERENCE: "torch.set_grad_enabled(gradients) => torch.inference_mode(not gradients)",
        CALLERS: "results = [ => torch.set_grad_enabled(False)\n    results = [",
        ONE_ARGUMENT: "module(value) => module(*value)",
        "Each module is called once.": "return module => return [module(value)] and module",
        "parallel_apply did the work: use device.submit.": (
            lambda m, i, d: parallel_apply(m, i, devices=d)
        ),
        "got None": lambda *_: None,
    },
    also_right=[
        (
            f"{MODE}: => try:\n            torch.set_grad_enabled(gradients)",
            "return module(value) => return module(value)\n        "
            "finally:\n            torch.set_grad_enabled(True)",
        )
    ],
)

# 2. Replicas


def my_replicas(net, devices):
    """The copies are results of `.to`, a step in the graph, so the way back to net stays open.

    A deep copy cuts that way: its weights are its own. It serves as the shell that is called, one
    for each device. The inner function holds the shell and the weights of its own device; a lambda
    in a loop would find those of the last device when it is called.
    """

    def replica_on(device):
        shell = copy.deepcopy(net)
        weights = {name: w.to(device.device, copy=True) for name, w in net.named_parameters()}
        return lambda rows: functional_call(shell, weights, rows)

    return [replica_on(device) for device in devices]


class Notes(list):
    """One list, and one place to meet, for a module and all its copies, deep ones too."""

    wanted = 0  # that many replicas wait for one another, while an attempt runs
    late = False  # whether one of them waited in vain

    def __deepcopy__(self, memo):
        return self


def note(notes, entry):
    """Note it, then wait until all that are wanted have come, or two seconds."""
    notes.append(entry)
    until = time.monotonic() + 2.0
    while len(notes) < notes.wanted and time.monotonic() < until:
        time.sleep(1e-3)
    notes.late |= len(notes) < notes.wanted


class Call(NamedTuple):
    """One call of a noting module: where, which copy of it, how many rows, with which weight."""

    thread: str
    module: nn.Module
    rows: int
    weight: torch.Tensor


class Noting(nn.Module):
    """A linear layer that notes in which threads it and its replicas ran."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.float64)
        self.calls = Notes()  # a Call each
        self.backwards = Notes()  # a thread's name, while any are wanted

    def forward(self, batch):
        """Note who runs, wait for the other replicas, then compute."""
        thread = threading.current_thread().name
        note(self.calls, Call(thread, self, len(batch), self.linear.weight))
        outputs = torch.tanh(self.linear(batch))
        if self.backwards.wanted and outputs.requires_grad:
            notes = self.backwards
            outputs.register_hook(lambda _: note(notes, threading.current_thread().name))
        return outputs


DIFFER = "The gradients differ from those of the module alone."
A_FUNCTION_EACH = "Return a list, and in it one function of the rows for each device."
GIVES_BACK = "A replica gives back what functional_call gives back: is there a return?"
ONE_SHELL = "The replicas call net itself, at the same time: give each a deep copy to call."
LATER = "Made in a loop? A lambda that runs later finds what the loop made last."
LAST_SHELL = f"All replicas called one deep copy: each needs its own. {LATER}"
LAST_WEIGHTS = f"All replicas share one copy of the weights: each needs its own. {LATER}"
PLACE = "torch's name for the place is device.device: .to(device.device, copy=True)."
ITS_MEMORY = "A replica reads net's own memory: .to(…, copy=True) copies on the same device, too."
CUT_WEIGHTS = "The copies are cut off from net's weights: detach and state_dict cut, .to does not."
LEAVES = (
    "Asked for the gradients: not all reach net's own weights, for a copy has weights of its own."
)


def replicas_at_work(attempt, rows, count):
    """Outputs and gradients of replicas that run at the same time."""
    devices = get_devices(count)
    torch.default_generator.manual_seed(rows)
    module = Noting().to(devices[0].device)
    place = devices[0].device
    batch = torch.arange(3.0 * rows, dtype=torch.float64, device=place).reshape(rows, 3) / rows
    right = module(batch)
    replicas = attempt(module, devices)
    listed = isinstance(replicas, list | tuple) and len(replicas) == count
    if not listed or not all(map(callable, replicas)):
        raise NotYet(f"expected {count} functions, got {short(replicas)}", A_FUNCTION_EACH)
    module.calls.clear()
    module.calls.wanted = count
    outputs = parallel_apply(replicas, scatter(batch, devices), devices=devices)
    module.calls.wanted = 0
    if not all(map(torch.is_tensor, outputs)):
        raise NotYet(f"the replicas gave back {short(outputs)}", GIVES_BACK)
    called = {call.module for call in module.calls}
    if len(called) < count:
        raise NotYet(ONE_SHELL if module in called else LAST_SHELL)
    outputs = gather(outputs, devices[0])
    if not same(outputs, right):
        raise NotYet(*expected_and_got(outputs, right))
    refuse_borrowed(attempt, {"replicate", "DataParallel"}, "copy each weight with .to.")
    memory = {call.weight.data_ptr() for call in module.calls}
    if len(memory) < count:
        raise NotYet(ITS_MEMORY if module.linear.weight.data_ptr() in memory else LAST_WEIGHTS)
    if outputs.grad_fn is None:
        raise NotYet(CUT_WEIGHTS)
    parameters = [*module.parameters()]
    found = torch.autograd.grad(outputs.square().sum(), parameters, allow_unused=True)
    if any(gradient is None for gradient in found):
        raise NotYet(LEAVES)
    if not same(list(found), list(torch.autograd.grad(right.square().sum(), parameters))):
        raise NotYet(DIFFER)
    return outputs, found


CALLS = "return lambda rows: functional_call(shell, weights, rows)"
OWN = "shell = copy.deepcopy(net)"
ALL = "[replica_on(device) for device in devices]"

check_replicas = Exercise(
    my_replicas,
    read_again='"One network on two devices"',
    cases=[(6, 2), (7, 3), (2, 1)],
    given="a batch of {} rows and {} device(s)",
    play=replicas_at_work,
    correct="Each device has its own replica, and all gradients reach the network's own weights.",
    errors={"object is not iterable": A_FUNCTION_EACH, r"got \(Device": PLACE},
    wrong={
        A_FUNCTION_EACH: [
            lambda *_: None,
            f"return {ALL} => return replica_on(devices[0])",
            "for device in devices] => for device in devices[:1]]",
            f"{CALLS} => return weights",
        ],
        GIVES_BACK: "lambda rows: functional => lambda rows: None and functional",
        ONE_SHELL: "copy.deepcopy(net) => net",
        LAST_SHELL: [
            f"return {ALL} => r = {ALL}\n    return [lambda rows: r[-1](rows) for _ in r]",
            (f"{OWN} => ", f"def replica_on => {OWN}\n    def replica_on"),
        ],
        LAST_WEIGHTS: (
            "return lambda => kept.update(weights)\n        return lambda",
            "shell, weights => shell, kept",
            "def replica_on => kept = {}\n    def replica_on",
        ),
        PLACE: "w.to(device.device => w.to(device",
        ITS_MEMORY: [", copy=True => ", "w.to(device.device, copy=True) => w"],
        CUT_WEIGHTS: [
            "w.to => w.detach().to",
            "net.named_parameters() => net.state_dict().items()",
        ],
        LEAVES: [
            f"{CALLS} => return shell.to(device.device)",
            "w.to(device.device, copy=True) => nn.Parameter(w.to(device.device, copy=True))",
            "net.named_parameters()} => net.named_parameters() if name.endswith('weight')}",
        ],
        "replicate did the work: copy each weight with .to.": lambda net, d: replicate(net, d),
        DIFFER: "copy=True) => copy=True) * 2 - w.detach()",
    },
    also_right=[
        "w.to(device.device, copy=True) => w.clone().to(device.device)",
        "net.named_parameters() => net.state_dict(keep_vars=True).items()",
        f"return {ALL} => return tuple(map(replica_on, devices))",
        "functional_call(shell, weights, rows) => functional_call(shell, weights, (rows,), {})",
    ],
)

# 3. The four verbs


def my_data_parallel(module, batch, devices):
    """Scatter first: how many chunks come out says how many devices are used.

    With five rows and four devices there are three chunks, and the verbs refuse lists of unequal
    lengths. `replicate` keeps the way back to the module's own weights; copies made with
    `copy.deepcopy` would have weights, and gradients, of their own.
    """
    chunks = scatter(batch, devices)
    used = devices[: len(chunks)]
    outputs = parallel_apply(replicate(module, used), chunks, devices=used)
    return gather(outputs, devices[0])


JOINS = "gather joins what the devices made."
PIECES_ORDER = "The pieces are joined in another order than that of the chunks."
ONE_CHUNK = "Those are the outputs of one chunk; all of them belong to the answer."
UNEVEN = "Chunks may differ in size: join the outputs along their rows, as gather does."
NAMED = "The third argument of parallel_apply is another one: write devices=…."
AVERAGED = "Outputs of different rows are joined, not averaged or added."
UNCUT = "Each device computed the whole batch: hand each its own chunk."
AS_MANY_CHUNKS = "There may be fewer chunks than devices: use devices[: len(chunks)]."
AT_WORK = "expected {} devices at work"
NEVER_AT_ONCE = "The replicas ran one after the other: no device began before another had ended."
USE_PARALLEL_APPLY = "parallel_apply runs them at the same time."
ON_THE_FIRST = "The outputs were joined on another device than the first: gather on devices[0]."
NO_WAY_BACK = "The outputs are cut off from the weights: no gradient can flow back."
OWN_WEIGHTS = "The gradients do not reach the module's own weights: copy with replicate."
ONE_LIST = "parallel_apply takes a list of modules: one replica for each chunk."
OWN_ROWS = "The rows were cut off from the batch: scatter keeps the way back."
ONE_PLACE = "gather joins on one device, its second argument: devices[0]."
OWN_REPLICA = "That works where all devices share one memory; on GPUs each needs its own replica."


def joined_wrongly(outputs, right, devices):
    """Words for the usual ways to join the pieces wrongly, or none."""
    pieces = scatter(right, devices)
    if same(outputs, torch.cat(pieces[::-1])):
        return PIECES_ORDER
    if same(outputs, torch.cat([right] * len(pieces))):
        return UNCUT
    if any(same(outputs, piece) for piece in pieces):
        return ONE_CHUNK
    averaged = outputs.numel() < right.numel() or same(outputs * len(pieces), right)
    return AVERAGED if averaged and len(pieces) > 1 else ""


def on_devices(attempt, rows, count):
    """Outputs, gradients and how many were at work."""
    devices = get_devices(count)
    torch.default_generator.manual_seed(rows)
    module = Noting().to(devices[0].device)
    batch = torch.arange(3.0 * rows, dtype=torch.float64, device=devices[0].device).reshape(rows, 3)
    batch.requires_grad_()
    wanted = module.calls.wanted = -(-rows // -(-rows // count))
    joining = mock.patch.object(scatter_gather, "_gather", wraps=scatter_gather._gather)
    with joining as joined:
        outputs = attempt(module, batch.clone(), devices)
    module.calls.wanted, late = 0, module.calls.late
    ran = {call.thread for call in module.calls}
    called = {call.module for call in module.calls}
    right = module(batch)
    if not isinstance(outputs, torch.Tensor):
        raise NotYet(f"expected one tensor, got {short(outputs)}", JOINS)
    if not same(outputs, right):
        raise NotYet(*expected_and_got(outputs, right), joined_wrongly(outputs, right, devices))
    if len({name for name in ran if "mpcourse device" in name}) < wanted:
        threads = ", ".join(sorted(ran)) or "no thread that could be seen"
        raise NotYet(f"{AT_WORK.format(wanted)}; the module ran in: {threads}")
    if late:
        raise NotYet(NEVER_AT_ONCE, USE_PARALLEL_APPLY)
    if any(call.args[1] != devices[0] for call in joined.call_args_list):
        raise NotYet(ON_THE_FIRST)
    if outputs.grad_fn is None:
        raise NotYet(NO_WAY_BACK)
    parameters = [*module.parameters(), batch]
    found = torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
    if any(gradient is None for gradient in found[:-1]):
        raise NotYet("Asked for the gradients:", OWN_WEIGHTS)
    if found[-1] is None:
        raise NotYet("Asked for the gradient of the batch:", OWN_ROWS)
    if not same(list(found), list(torch.autograd.grad(right.sum(), parameters))):
        raise NotYet(DIFFER)
    if len(called) < wanted:
        raise NotYet(f"{wanted} devices called one and the same module.", OWN_REPLICA)
    refuse_borrowed(attempt, {"DataParallel", "data_parallel"}, "use the four verbs.")
    return outputs, found, wanted


check_data_parallel = Exercise(
    my_data_parallel,
    read_again='"DataParallel, out of four verbs"',
    cases=[(7, 2), (5, 4), (6, 1)],
    given="a batch of {} rows and {} device(s)",
    play=on_devices,
    correct="Outputs and gradients are those of the module alone.",
    wrong={
        AT_WORK.format(2): [
            lambda module, batch, devices: module(batch),
            "scatter(batch, devices) => scatter(batch, devices[:1])",
        ],
        AS_MANY_CHUNKS: "devices[: len(chunks)] => devices",
        PIECES_ORDER: "gather(outputs => gather(outputs[::-1]",
        AVERAGED: [
            "gather(outputs, devices[0]) => sum(each.mean(0) for each in outputs) / len(outputs)",
            "gather(outputs, devices[0]) => sum(each[:3] for each in outputs)",
            "gather(outputs, devices[0]) => gather(outputs, devices[0]) / len(used)",
        ],
        ONE_CHUNK: "gather(outputs, devices[0]) => outputs[0]",
        UNEVEN: [
            "gather(outputs, devices[0]) => torch.stack(outputs)",
            "gather(outputs, devices[0]) => torch.cat(outputs, 1)",
        ],
        NAMED: "devices=used => used",
        UNCUT: [
            "chunks, devices => [batch] * len(chunks), devices",
            "chunks, devices => batch, devices",
        ],
        ONE_LIST: "replicate(module, used) => module",
        OWN_WEIGHTS: lambda m, b, d: my_data_parallel(copy.deepcopy(m), b, d),
        OWN_ROWS: "scatter(batch, => scatter(batch.detach(),",
        ONE_PLACE: ["outputs, devices[0] => outputs, devices", "outputs, devices[0] => outputs"],
        OWN_REPLICA: "replicate(module, used) => [module] * len(used)",
        JOINS: ["gather(outputs, devices[0]) => outputs", lambda *_: None],
        "expected a tensor of shape": "chunks, devices => [chunks[0]] * len(chunks), devices",
        USE_PARALLEL_APPLY: (
            "parallel_apply(replicate(module, used), chunks, devices=used) => "
            "[device.run(*pair) for device, *pair in zip(used, replicate(module, used), chunks)]"
        ),
        ON_THE_FIRST: "devices[0] => devices[-1]",
        NO_WAY_BACK: "outputs = => with torch.no_grad(): outputs =",
        DIFFER: lambda m, b, d: my_data_parallel(m, b, d) * 2 - my_data_parallel(m, b, d).detach(),
        "DataParallel did the work: use the four verbs.": lambda m, b, d: DataParallel(m, d)(b),
    },
    errors={
        "inputs 7": UNCUT,
        "same length": AS_MANY_CHUNKS,
        "has no len": ONE_LIST,
        "equal size|Sizes of tensors|cannot join": UNEVEN,
        r"got \[Device|target_device": ONE_PLACE,
        "devices are named": NAMED,
    },
    also_right=[
        "scatter(batch, devices) => batch.tensor_split(len(devices))",
        "gather(outputs, devices[0]) => torch.cat([o.to(devices[0].device) for o in outputs])",
        "replicate(module, used) => [lambda rows, shell=copy.deepcopy(module): torch.func."
        "functional_call(shell, {n: 1 * w for n, w in module.named_parameters()}, rows)"
        " for _ in used]",
    ],
)

# 4. A step that the workers share


def my_shared_step(networks, batch, devices):
    """The backward is called inside the worker, so each device computes its own.

    The loss is a sum over the rows; so the gradient of the whole batch is the sum of the chunks'
    gradients. Each network gets a copy of that sum: in one tensor for all, an optimizer that clips
    in place would clip it once for each network.
    """

    def work(network, rows):
        network.zero_grad()
        network(rows).square().sum().backward()

    pairs = list(zip(networks, scatter(batch, devices), strict=True))
    parallel_apply([work] * len(pairs), pairs, devices=devices)
    for weights in zip(*[network.parameters() for network in networks], strict=True):
        total = sum(weight.grad.to(devices[0].device) for weight in weights)
        for weight in weights:
            weight.grad = total.to(weight.device, copy=True)


NONE_THERE = "After the step, every parameter of every network has its .grad."
OWN_BACKWARD = (
    "A backward belongs to the thread that calls it: call it in the function handed over."
)
NO_TWO_AT_ONCE = "The workers took turns: hand over all before you wait for the first."
OWN_SUM = "That is the gradient of its own chunk; the sum over all chunks is asked for."
ONE_HAS_IT = "One network holds the sum, another does not: all of them get it."
A_MEAN = "The loss is a sum over the rows, so the chunks' gradients add up: no mean."
EACH_THE_WHOLE = "Each worker computed the whole batch: hand it its own chunk."
LEFT_OVER = "Gradients of the step before are still in there: zero_grad() first."
ONE_TENSOR = "Two networks share one gradient tensor: clip it, and it is clipped twice. Copy it."
SUMMED_AGAIN = (
    "Another network held the sum already when its gradient was added: sum first, then share."
)
OWN_NETWORK = (
    "Two workers wrote into one network at once, and a write can get lost: one network each."
)
TWO_ARGUMENTS = "A tuple is taken apart: work takes two arguments, a network and its rows."
NO_SUCH = "The loss is network(rows).square().sum(); add its gradients up over all chunks."
MOVED = (
    "The step brings the gradients, and leaves the weights as they are: an optimizer comes after."
)
AS_MANY_NETWORKS = "Take as many networks as there are: one for each device."


def gradients_of(network, rows):
    return torch.autograd.grad(network(rows).square().sum(), [*network.parameters()])


def judge_gradients(found, right, chunks):
    """Raise with words for the usual ways to bring the gradients together wrongly."""
    good = [same(list(each), list(right)) for each in found]
    if all(good):
        return
    number = good.index(False)
    bias = found[number][-1]
    words = ONE_HAS_IT if any(good) else NO_SUCH
    factors = bias / right[-1].to(bias.device)
    if same(bias, right[-1] * len(found)):
        words = EACH_THE_WHOLE
    elif factors.mean() < 1 and same(factors, factors.mean().expand_as(factors)):
        words = A_MEAN
    elif any(good) and same(bias, right[-1] + chunks[number][-1]):
        words = SUMMED_AGAIN
    elif not any(good) and same(bias, chunks[number][-1]):
        words = OWN_SUM
    raise NotYet(f"the bias of networks[{number}]:", *expected_and_got(bias, right[-1]), words)


def in_two_steps(attempt, rows, count):
    """The gradients after a second step, which finds those of the first."""
    devices = get_devices(count)
    torch.default_generator.manual_seed(rows)
    original = Noting()
    networks = [copy.deepcopy(original).to(device.device) for device in devices]
    on_cpu = devices[0].device.type == "cpu"  # for a GPU, torch has a thread of its own
    for step in range(2):
        batch = torch.arange(3.0 * rows, dtype=torch.float64).reshape(rows, 3) / (4 * rows) + step
        right = gradients_of(original, batch)
        chunks = [gradients_of(original, chunk) for chunk in batch.tensor_split(count)]
        for notes in (original.calls, original.backwards):
            notes.clear()
        original.calls.wanted, original.backwards.wanted = count, count * on_cpu
        before = copy.deepcopy([network.state_dict() for network in networks])
        attempt(networks, batch.to(devices[0].device), devices)
        original.calls.wanted = original.backwards.wanted = 0
        found = [[weight.grad for weight in network.parameters()] for network in networks]
        if any(gradient is None for each in found for gradient in each):
            raise NotYet("a gradient is None.", NONE_THERE)
        if not same([network.state_dict() for network in networks], before):
            raise NotYet("the weights have changed.", MOVED)
        threads = {name for name in original.backwards if "mpcourse device" in name}
        if on_cpu and len(threads) < count:
            names = ", ".join(sorted(set(original.backwards))) or "no thread that could be seen"
            raise NotYet(f"{count} workers; the backward ran in: {names}", OWN_BACKWARD)
        if original.calls.late or original.backwards.late:
            raise NotYet(NO_TWO_AT_ONCE)
        try:
            judge_gradients(found, right, chunks)
        except NotYet as problem:
            raise NotYet("in a second step,", LEFT_OVER) if step else problem from None
        computed = sum(call.rows for call in original.calls)
        if computed > rows:
            raise NotYet(f"the workers computed {computed} rows in all.", EACH_THE_WHOLE)
        if not set(networks) <= {call.module for call in original.calls}:
            raise NotYet(OWN_NETWORK)
    if len({gradient.data_ptr() for each in found for gradient in each}) < count * len(right):
        raise NotYet(ONE_TENSOR)
    return found


SUM = "sum(weight.grad.to(devices[0].device) for weight in weights)"
WHOLE = "scatter(batch, devices) => [batch.to(d.device) for d in devices]"
GIVEN = "weight.grad = total.to(weight.device, copy=True)"

check_shared_step = Exercise(
    my_shared_step,
    read_again='"Can the workers share the backward?"',
    cases=[(6, 2), (7, 2), (5, 1)],
    given="two steps with {} rows on {} device(s)",
    play=in_two_steps,
    correct="After both steps, every network holds the gradients of the whole batch.",
    errors={
        "is not callable": "Hand over the function, not what it returned: [work] * len(pairs).",
        "takes 1 positional argument but 2": TWO_ARGUMENTS,
        "NoneType": NONE_THERE,
        "to unpack|IndexError": AS_MANY_NETWORKS,
        "must match the size|same length": "Two devices, two chunks: scatter gives one for each.",
    },
    wrong={
        NONE_THERE: [lambda *_: None, f"{GIVEN} => weight.grad = None"],
        OWN_BACKWARD: (
            "network(rows).square().sum().backward() => return network(rows).square().sum()",
            "parallel_apply([work] => losses = parallel_apply([work]",
            "devices=devices) => devices=devices)\n    for loss in losses: loss.backward()",
        ),
        NO_TWO_AT_ONCE: (
            "parallel_apply([work] * len(pairs), pairs, devices=devices) => "
            "[device.run(work, *pair) for device, pair in zip(devices, pairs)]"
        ),
        OWN_SUM: f"{GIVEN} => pass",
        ONE_HAS_IT: f"for weight in weights:\n            {GIVEN} => weights[0].grad = total",
        SUMMED_AGAIN: f"{GIVEN} => weight.grad = sum(each.grad for each in weights)",
        A_MEAN: [f"{SUM} => {SUM} / len(weights)", "square().sum() => square().mean()"],
        EACH_THE_WHOLE: [WHOLE, (WHOLE, f"{SUM} => weights[0].grad")],
        MOVED: f"{GIVEN} => {GIVEN}\n            weight.data -= weight.grad",
        AS_MANY_NETWORKS: "zip(networks, => zip([networks[0], networks[1]],",
        LEFT_OVER: "network.zero_grad() => pass",
        OWN_NETWORK: [
            (
                "network.zero_grad() => pass",
                "pairs = => networks[0].zero_grad()\n    pairs =",
                f"zip(networks, scatter => zip({form}, scatter",
                f"{SUM} => weights[0].grad",
            )
            for form in ("networks[:1] * len(networks)", "replicate(networks[0], devices)")
        ],
        TWO_ARGUMENTS: "def work(network, rows): => def work(pair):\n        network, rows = pair",
        ONE_TENSOR: f"{GIVEN} => weight.grad = total",
        NO_SUCH: f"{SUM} => weights[0].grad - weights[-1].grad",
    },
    also_right=[
        f"{GIVEN} => weight.grad.copy_(total)",
        "network.zero_grad() => network.zero_grad(set_to_none=False)",
        (
            "parallel_apply([work] * len(pairs), pairs, devices=devices) => "
            "jobs = [d.submit(work, *pair) for d, pair in zip(devices, pairs)]\n    "
            "[job.result() for job in jobs]"
        ),
    ],
)
