"""Checks of page `parallel_apply`: parallel_apply, the four verbs, a crossing, memory."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.verdict import (
    Case,
    Verdict,
    borrows,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    short,
    try_out,
)
from mpcourse.devices.devices import Device, get_devices

MEET_S = 2.0

ParallelApply = Callable[[Sequence[Callable], Sequence[Tensor], Sequence[Device]], list]


def check_parallel_apply(attempt: ParallelApply) -> Verdict:
    """Check `my_parallel_apply(modules, inputs, devices)`.

    Args:
        attempt: Calls `modules[i](inputs[i])` on `devices[i]`, all at the same time, and returns
            the list of outputs.
    """
    if not callable(attempt):
        return no_function(attempt, '"Which output comes first?"')
    devices = get_devices(2)
    inputs = [torch.tensor([float(n + 1)], device=d.device) for n, d in enumerate(devices)]
    if try_out(attempt, [torch.neg, torch.neg], inputs, devices)[0] is ...:
        return not_attempted()
    for trial, where in _TRIALS:
        lines = trial(attempt, inputs, devices)
        if lines:
            return not_yet(lines, where)
    borrowed = borrows(
        attempt, {"parallel_apply"}, "use device.submit.", '"Which output comes first?"'
    )
    return borrowed or correct(
        "At the same time, in order, with the caller's grad mode, errors coming out."
    )


def _order(attempt: ParallelApply, inputs: list[Tensor], devices: list[Device]) -> list[str] | None:
    def slow(value: Tensor) -> Tensor:
        time.sleep(0.1)
        return value * 10

    def fast(value: Tensor) -> Tensor:
        return value * 100

    outputs, problem = try_out(attempt, [slow, fast], inputs, devices)
    given = "Given a slow module and a fast one:"
    if problem:
        return [given, problem]
    got = [float(output) for output in outputs] if _is_tensors(outputs) else outputs
    if got == [10.0, 200.0]:
        return None
    lines = [given, "expected [10, 200]", f"got {short(got)}"]
    if got == [200.0, 10.0]:
        lines.append("Outputs come in the order of the modules, not in the order of finishing.")
    elif got == [200.0, 200.0]:
        lines.append("The loop's variables had moved on when the worker ran: pass them to submit.")
    elif got == [10.0, 100.0] or got == [20.0, 200.0]:
        lines.append("Each module has its own input: inputs[i] goes to modules[i].")
    elif isinstance(got, list) and got and not _is_tensors(outputs):
        lines.append("Those are no values yet: ask each for its result.")
    return lines


def _is_tensors(outputs: Any) -> bool:
    return isinstance(outputs, list | tuple) and all(isinstance(o, Tensor) for o in outputs)


def _places(attempt: ParallelApply, inputs: list[Tensor], devices: list[Device]) -> list | None:
    threads: dict[int, str] = {}

    def noting(number: int) -> Callable[[Tensor], Tensor]:
        def module(value: Tensor) -> Tensor:
            threads[number] = threading.current_thread().name
            return value

        return module

    _, problem = try_out(attempt, [noting(0), noting(1)], inputs, devices)
    given = "Given two modules on two devices:"
    if problem:
        return [given, problem]
    for number, device in enumerate(devices):
        if device.name not in threads.get(number, ""):
            line = f"modules[{number}] ran in {threads.get(number)!r}, not in {device}'s worker."
            return [given, line, "devices[i].submit(…) hands it over."]
    return None


def _together(attempt: ParallelApply, inputs: list[Tensor], devices: list[Device]) -> list | None:
    barrier = threading.Barrier(2)

    def meet(value: Tensor) -> Tensor:
        barrier.wait(timeout=MEET_S)
        return value

    _, problem = try_out(attempt, [meet, meet], inputs, devices)
    if problem is None:
        return None
    given = "Given two modules that wait for each other:"
    if "BrokenBarrierError" not in problem:
        return [given, problem]
    line = "they never met: the first was waited for before the second was handed over."
    return [given, line, "First submit all of them, then ask for the results."]


def _counts(attempt: ParallelApply, inputs: list[Tensor], devices: list[Device]) -> list | None:
    for count in (1, 3):
        places = get_devices(count)
        given = [torch.tensor([n + 1.0], device=d.device) for n, d in enumerate(places)]
        outputs, problem = try_out(attempt, [torch.neg] * count, given, places)
        found = [float(o) for o in outputs] if _is_tensors(outputs) else outputs
        if problem or found != [-n for n in range(1, count + 1)]:
            got = problem or f"expected {count} outputs, got {short(found)}"
            return [f"Given {count} modules on {count} devices:", got, "Take as many as there are."]
    return None


def _errors(attempt: ParallelApply, inputs: list[Tensor], devices: list[Device]) -> list | None:
    def broken(value: Tensor) -> Tensor:
        raise KeyError("no such layer")

    outputs, problem = try_out(attempt, [torch.neg, broken], inputs, devices)
    if problem and "KeyError" in problem:
        return None
    given = "Given a second module that raises KeyError:"
    if problem:
        return [given, problem, "The error should keep its type."]
    return [given, f"got {short(outputs)}", "The error was swallowed; the caller has to see it."]


def _grad_mode(attempt: ParallelApply, inputs: list[Tensor], devices: list[Device]) -> list | None:
    weights = [torch.ones(1, device=d.device, requires_grad=True) for d in devices]
    modules = [lambda value, weight=weight: value * weight for weight in weights]

    def without_gradients() -> list:
        with torch.no_grad():
            return attempt(modules, inputs, devices)

    outputs, problem = try_out(without_gradients)
    left_on = [device.run(torch.is_grad_enabled) for device in devices]
    for device in devices:
        device.run(torch.set_grad_enabled, True)  # whatever the attempt left behind
    given = "Called under torch.no_grad():"
    if problem:
        return [given, problem]
    if any(output.requires_grad for output in outputs):
        line = "the outputs require gradients: grad mode belongs to a thread, not to the program."
        hint = "Who knows the caller's mode, and who has to set it?"
        return [given, line, hint]
    if not all(left_on):
        line = "gradients stay off in the worker for all later work: set the mode in a with block."
        return [given, line]
    with_gradients, problem = try_out(attempt, modules, inputs, devices)
    if problem or not all(output.requires_grad for output in with_gradients):
        return ["Called with gradients on:", problem or "the outputs require none."]
    return None


_TRIALS: tuple[tuple[Callable[..., list[str] | None], str], ...] = (
    (_order, '"Which output comes first?"'),
    (_places, '"Which output comes first?"'),
    (_together, '"Which output comes first?"'),
    (_counts, '"Which output comes first?"'),
    (_errors, '"Which output comes first?"'),
    (_grad_mode, '"Which output comes first?"'),
)


def check_data_parallel(
    attempt: Callable[[nn.Module, Tensor, Sequence[Device]], Tensor],
) -> Verdict:
    """Check `my_data_parallel(module, batch, devices)`: the forward pass out of the four verbs.

    Args:
        attempt: Takes a module on the first device, a batch and devices, returns the outputs.
    """
    where = '"DataParallel, out of four verbs"'
    if not callable(attempt):
        return no_function(attempt, where)
    for rows, count in ((7, 2), (5, 4), (6, 1)):
        devices = get_devices(count)
        module = _Noting().to(devices[0].device)
        batch = torch.arange(3.0 * rows, dtype=torch.float64, device=devices[0].device)
        outputs, problem = try_out(attempt, module, batch.reshape(rows, 3), devices)
        if problem is None and outputs is ...:
            return not_attempted()
        lines = [problem] if problem else _data_parallel_problem(module, outputs, rows, devices)
        if lines:
            given = f"Given a batch of {rows} rows and {count} device{'s' * (count > 1)}:"
            return not_yet([given, *lines], where)
    borrowed = borrows(attempt, {"DataParallel", "data_parallel"}, "use the four verbs.", where)
    return borrowed or correct("Outputs and gradients are those of the module alone.")


class _Noting(nn.Module):
    """A linear layer that notes in which threads it and its replicas ran."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.float64)
        self.threads: list[str] = []  # replicas share the list

    def forward(self, batch: Tensor) -> Tensor:
        self.threads.append(threading.current_thread().name)
        return torch.tanh(self.linear(batch))


def _data_parallel_problem(
    module: _Noting, outputs: Any, rows: int, devices: Sequence[Device]
) -> list[str] | None:
    batch = torch.arange(3.0 * rows, dtype=torch.float64, device=devices[0].device)
    ran = list(module.threads)
    right = module(batch.reshape(rows, 3))
    if not isinstance(outputs, Tensor):
        return [f"expected one tensor, got {short(outputs)}", "gather joins what the devices made."]
    if outputs.shape != right.shape or not torch.allclose(outputs, right):
        return [f"expected {short(right)}", f"got {short(outputs)}"]
    wanted = -(-rows // -(-rows // len(devices)))
    if len({name for name in ran if "mpcourse device" in name}) < wanted:
        ran_in = ", ".join(sorted(set(ran))) or "no thread that could be seen"
        return [f"expected {wanted} devices at work; the module ran in: {ran_in}"]
    if outputs.grad_fn is None:
        return ["The outputs are cut off from the weights: no gradient can flow back."]
    parameters = list(module.parameters())
    wanted_gradients = torch.autograd.grad(right.sum(), parameters)
    found = torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
    if any(gradient is None for gradient in found):
        line = "The gradients do not reach the module's own weights: copy with replicate."
        return ["Asked for the gradients:", line]
    if not all(torch.allclose(f, w) for f, w in zip(found, wanted_gradients, strict=True)):
        return ["The gradients differ from those of the module alone."]
    return None


def check_crossing(
    attempt: Callable[[Sequence[int], Sequence[float], Sequence[float]], int | None],
) -> Verdict:
    """Check `my_crossing(sizes, one_device, two_devices)`: from which batch size does it pay?

    Args:
        attempt: Takes batch sizes and two lists of times, returns the smallest size from which on
            two devices are faster for every size, or None.
    """
    sizes = [8, 16, 32, 64]
    cases = [
        _crossing_case(sizes, [1.0, 2.0, 4.0, 8.0], [3.0, 3.0, 3.0, 5.0]),
        _crossing_case(sizes, [1.0, 2.0, 4.0, 8.0], [0.9, 3.0, 3.0, 5.0]),
        _crossing_case(sizes, [1.0, 2.0, 4.0, 8.0], [2.0, 3.0, 5.0, 9.0]),
        _crossing_case(sizes, [1.0, 2.0, 4.0, 8.0], [3.0, 2.0, 3.0, 5.0]),
        _crossing_case(sizes, [2.0, 4.0, 6.0, 9.0], [1.0, 3.0, 4.0, 5.0]),
        _crossing_case(sizes, [2.0, 4.0, 6.0, 9.0], [3.0, 3.0, 4.0, 9.5]),
        _crossing_case(sizes, [2.0, 4.0, 6.0, 9.0], [3.0, 5.0, 7.0, 8.0]),
        _crossing_case([4, 8], [2.0, 4.0], [1.0, 5.0]),
    ]
    return check_cases(attempt, cases, where='"From which batch size does it pay here?"')


def _crossing_case(sizes: list[int], one: list[float], two: list[float]) -> Case:
    faster = [b < a for a, b in zip(one, two, strict=True)]
    steady = [all(faster[start:]) for start in range(len(sizes))]
    right = sizes[steady.index(True)] if any(steady) else None
    dips = [size for size, wins in zip(sizes, faster, strict=True) if wins]
    known: list[tuple[Any, str]] = []
    if dips and dips[0] != right:
        known.append((dips[0], "It is faster there, but not at every larger size: a lucky moment."))
    level = [b <= a for a, b in zip(one, two, strict=True)]
    ties = [size for start, size in enumerate(sizes) if all(level[start:])]
    if ties and ties[0] != right:
        known.append((ties[0], "Equally fast is not faster."))
    if right is not None:
        known.append((None, "None means that it never pays; here it does."))
        known.append((sizes.index(right), "That is the position in the list, not the batch size."))
    else:
        known.append((0, "When it never pays, return None."))
        known.append((sizes[-1], "At the largest size it does not pay either: return None."))
    known.append((dips, "Those are all sizes at which it is faster; one number is asked for."))
    hint = "Find the smallest size such that there, and at every larger size, two are faster."
    given = f"sizes {sizes}, one device {one}, two devices {two}"
    return Case(given, (sizes, one, two), right, tuple(known), hint)


def check_first_device(attempt: Callable[[int, int, int, int, int], int]) -> Verdict:
    """Check `my_first_device(weights, row_in, row_out, rows, devices)`, in bytes.

    Args:
        attempt: Takes the bytes of the model's weights, of a row of input and of a row of output,
            the rows of the batch and the number of devices; returns the bytes on the first device.
    """
    cases = [
        _memory_case(*numbers)
        for numbers in ((1000, 10, 4, 8, 2), (1000, 10, 4, 7, 3), (500, 100, 1000, 5, 4))
    ]
    return check_cases(attempt, cases, where='"Who holds what in the end?"')


def _memory_case(weights: int, row_in: int, row_out: int, rows: int, devices: int) -> Case:
    chunk = -(-rows // devices)
    right = weights + chunk * row_in + rows * row_out
    known = (
        (weights + chunk * (row_in + row_out), "Outputs are gathered: the first device has all."),
        (weights + rows * (row_in + row_out), "Inputs are scattered: it holds its chunk of them."),
        (weights / devices + chunk * row_in + rows * row_out, "Each device has all the weights."),
        (weights * devices + chunk * row_in + rows * row_out, "Each device has the weights once."),
        (weights + rows / devices * row_in + rows * row_out, "A chunk has a whole number of rows."),
        (weights + rows // devices * row_in + rows * row_out, "The first chunk is rounded up."),
    )
    distinct = tuple(pair for pair in known if abs(pair[0] - right) > 1e-6)
    given = (
        f"weights {weights} bytes, a row in {row_in}, a row out {row_out}, "
        f"{rows} rows, {devices} devices"
    )
    hint = f"weights + its chunk of the inputs ({chunk} rows) + the outputs of all {rows} rows"
    return Case(given, (weights, row_in, row_out, rows, devices), right, distinct, hint)
