"""The forms of one model side by side: answer, size, start-up, latency."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpcourse.compilation.forms import FORMS, Form
from mpcourse.compilation.toolchain import quietly
from mpcourse.devices.devices import DeviceLike, as_devices, get_devices, synchronize
from mpcourse.devices.timing import Timing, measure_together
from mpcourse.pruning.masked import permanent_copy


@dataclass(frozen=True)
class FormReport:
    """One form of a model.

    A start-up is the time from the model to the first answer. Graphs that were compiled before are
    compiled again; imported modules and files in the system's cache stay, so that a second start
    is shorter.
    """

    largest_difference: float  # to the outputs of the eager model
    bytes: int  # of the file that is saved
    startup_s: float
    latency: Timing  # of the calls that follow


def compare_forms(
    model: nn.Module,
    sample: Tensor,
    device: DeviceLike | None = None,
    *,
    names: Iterable[str] = FORMS,
) -> dict[str, FormReport]:
    """Bring a model into several forms, on one device, and compare them.

    The latencies are measured in turns. torch's cache of compiled code is reset first.

    Args:
        model: Any module that takes one tensor; copied, without masks, in evaluation mode.
        sample: An input of at least two rows, on the model's device.
        device: Where they are; the first of `get_devices(1)` when `None`.
        names: Some of `FORMS`.

    Returns:
        Name -> `FormReport`, in the order of the names.

    Raises:
        ValueError: Another name.
        CompilerMissing: "compile" is among them and there is no compiler to call.
    """
    names = list(names)
    if unknown := [name for name in names if name not in FORMS]:
        raise ValueError(f"forms are {', '.join(FORMS)}; got {unknown}")
    [place] = get_devices(1) if device is None else as_devices([device])
    ready = permanent_copy(model).eval()
    expected = place.run(_answer, ready, sample)
    torch.compiler.reset()
    started = {name: place.run(start, FORMS[name], ready, sample) for name in names}
    calls = {
        name: lambda call=form.call: place.run(_answer, call, sample)
        for name, (form, _, _) in started.items()
    }
    latencies = measure_together(calls, [place], warmup=3, repeats=15)
    return {
        name: FormReport(
            largest_difference=(answer - expected).abs().max().item(),
            bytes=len(form.file),
            startup_s=seconds,
            latency=latencies[name],
        )
        for name, (form, answer, seconds) in started.items()
    }


def start(
    build: Callable[..., Form], model: nn.Module, sample: Tensor
) -> tuple[Form, Tensor, float]:
    """Bring a model into a form and call it once: the form, its answer, the seconds of both."""
    synchronize()
    begin = time.perf_counter()
    with quietly(), torch.no_grad(), torch.compiler.config.patch(force_disable_caches=True):
        form = build(model, sample)
        answer = form.call(sample)
    synchronize()
    return form, answer, time.perf_counter() - begin


def _answer(call: Callable[[Tensor], Tensor], sample: Tensor) -> Tensor:
    with torch.no_grad():  # in the worker: modes belong to a thread
        return call(sample)


def forms_table(reports: Mapping[str, FormReport]) -> str:
    """Several reports as text, a line each."""
    head = f"{'':<22}{'difference':>12}{'bytes':>12}{'start-up':>12}{'latency':>12}"
    lines = [
        f"{name:<22}{each.largest_difference:>12.1e}{each.bytes:>12,}"
        f"{each.startup_s:>10.2f} s{each.latency.median_s * 1e3:>9.3f} ms"
        for name, each in reports.items()
    ]
    return "\n".join([head, *lines])
