"""Devices and how to get them: GPUs, shares of one GPU, or CPU cores (page `start_here`).

The same page runs on all three. Each device has a worker, a thread that runs what it is handed, for
the life of the process.
"""

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from mpcourse.devices.locks import fork_safe_lock
from mpcourse.devices.streams import CpuCore, GpuShare, StreamContext, WholeGpu, share_streams
from mpcourse.devices.workers import Result, Worker, collect
from mpcourse.schedules.actions import check_count

Kind = Literal["gpu", "gpu share", "cpu core"]


@dataclass(frozen=True)
class Device:
    """A place that computes, and its worker.

    Equal devices have the same worker. CPU cores share one `torch.device` and differ by index.

    Attributes:
        index: Which of its kind: the GPU, the share of its GPU, the CPU core. From 0.
        device: Where the tensors of this device live.
        kind: "gpu", "gpu share" or "cpu core".
        name: For people, for example "CPU core 1".
        shares: Into how many shares the GPU is cut; 1 for whole GPUs and CPU cores.
    """

    index: int
    device: torch.device
    kind: Kind
    name: str
    shares: int = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Result:
        """Hand `fn(*args, **kwargs)` to this device's worker and return at once.

        The worker is another thread, and the caller's modes (`no_grad`, autocast) belong to the
        caller's: they do not hold there. `parallel_apply` carries them over.

        Returns:
            A `Result`; its `.result()` waits, then returns the value or raises the exception.
        """
        return self.worker.submit(fn, *args, **kwargs)

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` in this device's worker, wait, and return its value."""
        return self.submit(fn, *args, **kwargs).result()

    @property
    def worker(self) -> Worker:
        """The thread that runs this device's work, the same for the life of the process."""
        with _workers_lock:
            if self not in _workers:
                name = f"device {self.index} ({self.name})"
                _workers[self] = Worker(name, _stream_context(self))
            return _workers[self]

    def __str__(self) -> str:
        return self.name


DeviceLike = Device | torch.device | str

_workers: dict[Device, Worker] = {}
_workers_lock = fork_safe_lock()


def get_devices(n: int = 2) -> list[Device]:
    """Return n devices, the best kind that this machine has.

    With GPUs, n is spread over them: one GPU each, or shares when n is larger than their number.
    Without, or where the installed torch supports none of them, CPU cores; more devices than cores
    work, but cannot all compute at the same time.

    Args:
        n: How many devices, 1 or more.
    """
    check_count("n, the number of devices,", n)
    gpus = usable_gpus()
    if not gpus:
        return as_devices([torch.device("cpu")] * n)
    # neighbours land on one GPU, so that a pipeline over all of them crosses between GPUs least
    places = [i * len(gpus) // n if n > len(gpus) else i for i in range(n)]
    return as_devices([torch.device("cuda", gpus[place]) for place in places])


def usable_gpus() -> list[int]:
    """Return the indices of the GPUs for which the installed torch holds code; warn of others.

    `torch.cuda.is_available()` is true for those too, and their first kernel fails.
    """
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    if gpus and not torch.cuda.is_initialized():
        with warnings.catch_warnings(action="ignore"):  # torch says the same in twenty lines
            torch.cuda.init()
    versions = [torch.cuda.get_device_capability(gpu) for gpu in gpus]
    built_for = torch.cuda.get_arch_list()
    usable = [gpu for gpu in gpus if has_code_for(versions[gpu], built_for)]
    for gpu in set(gpus) - set(usable):
        name, (major, minor) = torch.cuda.get_device_name(gpu), versions[gpu]
        warnings.warn(
            f"{name} is not used: the installed torch has no code for its generation "
            f"(sm_{major}{minor}). On Kaggle, choose GPU T4 x2 in the settings.",
            stacklevel=2,
        )
    return usable


def has_code_for(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Tell whether a GPU can run a torch that was built for these (`torch.cuda.get_arch_list`).

    Machine code (`sm_75`) runs on GPUs of its major version from its minor one on, PTX
    (`compute_75`) is compiled on all later ones; those for one GPU alone end with "a". Source: CUDA
    C++ Programming Guide, binary and PTX compatibility.
    """
    codes = [re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name) for name in built_for]
    if not codes or None in codes:  # none of CUDA's names: AMD's, which torch checks itself
        return True
    for kind, major, minor, only in (code.groups() for code in codes):
        oldest = int(major), int(minor)
        newest = (99, 9) if kind == "compute" and not only else (oldest[0], 9)
        newest = oldest if only == "a" else newest
        if oldest <= capability <= newest:
            return True
    return False


def as_devices(devices: Sequence[DeviceLike]) -> list[Device]:
    """Turn what a caller may name a device with into `Device`s.

    "cpu" named twice means two cores, "cuda:0" named twice means two shares of that GPU;
    "cpu:3" is core 3.

    Args:
        devices: One or more of `Device`, `torch.device` or a string such as "cuda:1" or "cpu".

    Raises:
        ValueError: `devices` is empty, or names a device that this machine does not have.
        TypeError: An entry is something else, or `devices` is no list.
    """
    if isinstance(devices, DeviceLike):
        devices = [devices]
    if not isinstance(devices, Sequence):
        raise TypeError(f"devices is a list, for example get_devices(2); got {devices!r}")
    if len(devices) == 0:
        raise ValueError("devices is empty; name at least one, for example get_devices(2)")
    entries = [entry if isinstance(entry, Device) else _place(entry) for entry in devices]
    return [
        entry if isinstance(entry, Device) else _numbered(entry, entries[:i], entries.count(entry))
        for i, entry in enumerate(entries)
    ]


def _place(entry: torch.device | str) -> torch.device:
    """Check that the machine has the device, and name a GPU by its index."""
    if not isinstance(entry, torch.device | str):
        raise TypeError(f"a device is a Device, a torch.device or a string; got {entry!r}")
    try:
        device = torch.device(entry)
    except RuntimeError as error:
        raise ValueError(f'{entry!r} is no device; use "cpu", "cuda:0", …') from error
    if device.type == "cpu":
        return device
    gpus = usable_gpus()
    index = torch.cuda.current_device() if gpus and device.index is None else device.index
    if device.type != "cuda" or index not in gpus:
        here = f"{len(gpus)} CUDA GPUs and the CPU"
        raise ValueError(f"this machine has no device {str(device)!r}; it has {here}")
    return torch.device("cuda", index)


def _numbered(place: torch.device, before: list, times: int) -> Device:
    """The Device for one entry, given the entries before it and how often it is named in all."""
    nth = before.count(place)
    if place.type == "cpu":
        core = nth if place.index is None else place.index
        return Device(core, torch.device("cpu"), "cpu core", f"CPU core {core}")
    name = f"GPU {place.index}"
    if times == 1:
        return Device(place.index, place, "gpu", name)
    return Device(nth, place, "gpu share", f"{name}, share {nth + 1} of {times}", times)


def _stream_context(device: Device) -> StreamContext:
    if device.kind == "cpu core":
        return CpuCore()
    if device.kind == "gpu":
        return WholeGpu(device.device)
    return GpuShare(device.device, device.index, device.shares)


def synchronize(devices: Sequence[DeviceLike] | None = None) -> None:
    """Wait until the devices have finished everything that was handed to them.

    A clock read before this has happened measures how long handing over took, not the work.

    Args:
        devices: The devices to wait for; all that have been used so far when `None`.
    """
    if devices is None and torch.cuda.is_initialized():
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.synchronize(gpu)  # also for what was queued without a worker
    chosen = list(_workers) if devices is None else as_devices(devices)
    collect([device.submit(device.worker.context.synchronize) for device in chosen])


def capture_modes(devices: Sequence[Device]) -> dict[str, Any]:
    """The caller's gradient, inference and autocast modes, which do not hold in other threads."""
    modes: dict[str, Any] = {
        kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in {device.device.type for device in devices}
    }
    modes["grad"] = torch.is_grad_enabled()
    modes["inference"] = torch.is_inference_mode_enabled()
    return modes


@contextlib.contextmanager
def modes_set(modes: dict[str, Any], kind: str) -> Iterator[None]:
    """Set the modes in this thread, for work on a device of type `kind` ("cpu" or "cuda")."""
    autocast, dtype = modes[kind]
    with contextlib.ExitStack() as stack:
        if modes["inference"] != torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(modes["inference"]))
        stack.enter_context(torch.set_grad_enabled(modes["grad"]))  # inference mode sets it too
        if autocast or torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=autocast))
        yield


def available_cores() -> int:
    """Count the CPU cores that this process may use: its affinity, and a container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:  # cgroup v2, as in Docker and on Binder: "quota period" in microseconds, or "max period"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def describe_devices(devices: Sequence[DeviceLike] | None = None) -> str:
    """Say in one line which devices these are and whether they can compute at the same time.

    Args:
        devices: The devices to describe; `get_devices(2)` when `None`.
    """
    chosen = get_devices(2) if devices is None else as_devices(devices)
    kinds = {device.kind for device in chosen}
    if len(kinds) > 1:
        alike = ([d for d in chosen if d.kind == kind] for kind in sorted(kinds))
        return " ".join(describe_devices(devices) for devices in alike)
    if kinds == {"cpu core"}:
        return _describe_cores(len(set(chosen)))
    models = ", ".join(sorted({torch.cuda.get_device_name(d.device) for d in chosen}))
    gpus = len({device.device for device in chosen})
    if kinds == {"gpu"}:
        return f"{gpus} GPU{'s' * (gpus > 1)}, one worker each ({models})."
    own = all(share_streams(d.device.index, d.shares)[1] for d in chosen if d.shares > 1)
    what = "multiprocessors" if own else "stream, and overlap as far as the GPU has room"
    shares = f"{len(chosen)} shares of {gpus} GPU{'s' * (gpus > 1)} ({models})"
    return f"{shares}, each with its own {what}."


def _describe_cores(count: int) -> str:
    cores = available_cores()
    line = f"{count} CPU worker{'s' * (count > 1)} of one thread on {cores} core{'s' * (cores > 1)}"
    if count <= cores:
        return f"{line} (no GPU): each has a core, so they can work at the same time."
    return f"{line} (no GPU): only {cores} can work at the same time, the others wait."
