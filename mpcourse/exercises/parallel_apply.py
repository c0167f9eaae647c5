"""Exercises of page `parallel_apply`: parallel_apply, the four verbs, a crossing."""

import concurrent.futures
import contextlib
import copy
import threading
import time
from unittest import mock

import torch
from torch import nn

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
    errors={"a worker runs functions": CALLED, "but 2 were given": ONE_ARGUMENT},
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
        HAND_OVER: [
            lambda m, i, d: [*concurrent.futures.ThreadPoolExecutor().map(lambda f, x: f(x), m, i)],
            "device.submit => devices[0].submit",
        ],
        FIRST_SUBMIT: ("device.submit => device.run", f"{RESULTS} => results"),
        AS_MANY: "in pairs => in [*pairs][:2]",
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

# 2. The four verbs


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


class Notes(list):
    """One list, and one place to meet, for a module and all its copies, deep ones too."""

    wanted = 0  # that many replicas wait for one another, while an attempt runs
    late = False  # whether one of them waited in vain

    def __deepcopy__(self, memo):
        return self


class Noting(nn.Module):
    """A linear layer that notes in which threads it and its replicas ran."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.float64)
        self.calls = Notes()  # a thread's name, and the replica that it called

    def forward(self, batch):
        """Note who runs, wait for the other replicas, then compute."""
        self.calls.append((threading.current_thread().name, self))
        until = time.monotonic() + 2.0
        while len(self.calls) < self.calls.wanted and time.monotonic() < until:
            time.sleep(1e-3)
        self.calls.late |= len(self.calls) < self.calls.wanted
        return torch.tanh(self.linear(batch))


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
OWN_ROWS = "The rows were cut off from the batch: scatter keeps the way back."
DIFFER = "The gradients differ from those of the module alone."
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
    ran, called = zip(*module.calls, strict=True) if module.calls else ((), ())
    right = module(batch)
    if not isinstance(outputs, torch.Tensor):
        raise NotYet(f"expected one tensor, got {short(outputs)}", JOINS)
    if not same(outputs, right):
        raise NotYet(*expected_and_got(outputs, right), joined_wrongly(outputs, right, devices))
    if len({name for name in ran if "mpcourse device" in name}) < wanted:
        threads = ", ".join(sorted(set(ran))) or "no thread that could be seen"
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
    if len(set(called)) < wanted:
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
        UNCUT: "chunks, devices => [batch] * len(chunks), devices",
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
        "same length": AS_MANY_CHUNKS,
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

# 3. A crossing


def my_crossing(sizes, speedups):
    """Go from the largest size down, for as long as two devices are faster.

    The first size at which they are faster may be a lucky moment of the clock: what pays has to pay
    at every larger size too.
    """
    found = None
    for size, speedup in reversed(list(zip(sizes, speedups, strict=True))):
        if speedup <= 1:
            break
        found = size
    return found


def wins(sizes, speedups):
    return [size for size, speedup in zip(sizes, speedups, strict=True) if speedup > 1]


check_crossing = Exercise(
    my_crossing,
    read_again='"From which batch size does it pay here?"',
    cases=[
        ([8, 16, 32, 64], [0.3, 0.7, 1.3, 1.6]),
        ([8, 16, 32, 64], [1.1, 0.7, 1.3, 1.6]),
        ([8, 16, 32, 64], [0.5, 0.7, 0.8, 0.9]),
        ([8, 16, 32, 64], [0.3, 1.0, 1.3, 1.6]),
        ([8, 16, 32, 64], [2.0, 1.3, 1.5, 1.8]),
        ([8, 16, 32, 64], [0.7, 1.3, 1.5, 0.9]),
        ([8, 16, 32, 64], [0.7, 0.8, 0.9, 1.1]),
        ([4, 8], [2.0, 0.8]),
    ],
    given="sizes {}, speed-ups {}",
    hint="Find the smallest size such that there, and at every larger size, two are faster.",
    wrong={
        "It is faster there, but not at every larger size: a lucky moment.": [
            "break => continue",
            "strict=True)) => strict=True))[:-1]",
        ],
        "Equally fast is not faster.": "<= => <",
        "The smallest such size is asked for, not the largest.": lambda s, x: max(wins(s, x)),
        "None means that it never pays; here it does.": "<= => >=",
        "That is the position in the list, not the batch size.": "= size => = sizes.index(size)",
        "When it never pays, return None.": [f"= None => = {no}" for no in ("0", "-1", "False")],
        "That is the speed-up there, not the batch size.": "= size => = speedup",
        "One size further, all are above 1; at this one it does not pay.": (
            "if speedup <= 1: => found = size\n        if speedup <= 1:"
        ),
        "At the largest size it does not pay either: return None.": "= None => = sizes[-1]",
        "Those are all sizes at which it is faster; one number is asked for.": wins,
        "Find the smallest size": lambda s, x: sum(s),
    },
    also_right=[lambda s, x: next((n for i, n in enumerate(s) if min(x[i:]) > 1), None)],
)
