"""Checks of page `parallel_apply`: parallel_apply, the four verbs, a crossing, memory."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.attempted_hand_overs import TRIALS, ParallelApply
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


def check_parallel_apply(attempt: ParallelApply) -> Verdict:
    """Check `my_parallel_apply(modules, inputs, devices)`.

    Args:
        attempt: Calls `modules[i](inputs[i])` on `devices[i]`, all at the same time, and returns
            the list of outputs.
    """
    where = '"Which output comes first?"'
    if not callable(attempt):
        return no_function(attempt, where)
    devices = get_devices(2)
    inputs = [torch.tensor([float(n + 1)], device=d.device) for n, d in enumerate(devices)]
    if try_out(attempt, [torch.neg, torch.neg], inputs, devices)[0] is ...:
        return not_attempted()
    for trial in TRIALS:
        lines = trial(attempt, inputs, devices)
        if lines:
            return not_yet(lines, where)
    borrowed = borrows(attempt, {"parallel_apply"}, "use device.submit.", where)
    return borrowed or correct(
        "At the same time, in order, with the caller's grad mode, errors coming out."
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


class _Notes(list):
    """One list for a module and all its copies, deep ones too."""

    def __deepcopy__(self, memo: dict) -> "_Notes":
        return self


class _Noting(nn.Module):
    """A linear layer that notes in which threads it and its replicas ran."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.float64)
        self.calls = _Notes()  # a thread's name, and the replica that it called

    def forward(self, batch: Tensor) -> Tensor:
        self.calls.append((threading.current_thread().name, self))
        return torch.tanh(self.linear(batch))


def _data_parallel_problem(
    module: _Noting, outputs: Any, rows: int, devices: Sequence[Device]
) -> list[str] | None:
    batch = torch.arange(3.0 * rows, dtype=torch.float64, device=devices[0].device)
    ran, called = zip(*module.calls, strict=True) if module.calls else ((), ())
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
    if len(set(called)) < wanted:
        line = "That works where all devices share one memory; on GPUs each needs its own replica."
        return [f"{wanted} devices called one and the same module.", line]
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
    given = (
        f"weights {weights} bytes, a row in {row_in}, a row out {row_out}, "
        f"{rows} rows, {devices} devices"
    )
    hint = f"weights + its chunk of the inputs ({chunk} rows) + the outputs of all {rows} rows"
    return Case(given, (weights, row_in, row_out, rows, devices), right, known, hint)
