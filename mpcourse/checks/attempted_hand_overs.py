"""Trials of an attempt at `parallel_apply`: order, places, overlap, counts, errors, grad mode.

Page `parallel_apply`. Each takes the attempt, two inputs and their devices, and returns lines that
say what was given and what went wrong, or None.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mpcourse.checks.verdict import short, try_out
from mpcourse.devices.devices import Device, get_devices

MEET_S = 2.0

ParallelApply = Callable[[Sequence[Callable], Sequence[Tensor], Sequence[Device]], list]


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


TRIALS: tuple[Callable[..., list[str] | None], ...] = (
    _order,
    _places,
    _together,
    _counts,
    _errors,
    _grad_mode,
)
