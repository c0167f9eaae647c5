"""Run several modules at the same time, each on its own device (page `parallel_apply`).

Source: torch/nn/parallel/parallel_apply.py, which refuses CPU devices. Same argument order and
results; the threads are the devices' workers, where torch starts new ones for every call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpcourse.devices.devices import Device, DeviceLike, as_devices, capture_modes, modes_set
from mpcourse.devices.workers import add_note, collect


def parallel_apply(
    modules: Sequence[Callable[..., Any]],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[DeviceLike] | None = None,
) -> list[Any]:
    """Call `modules[i](*inputs[i], **kwargs_tup[i])` on `devices[i]`, all at the same time.

    The callers' modes hold in the workers too: no_grad, inference mode, autocast.

    Args:
        modules: Replicas, or any modules or functions.
        inputs: For each module a tuple or list of positional arguments, or one argument alone.
        kwargs_tup: For each module its keyword arguments; none when `None`.
        devices: For each module its device. When `None`, where its first input tensor is, a core
            each on the CPU.

    Returns:
        The outputs, in the order of `modules`, each on its own device.

    Raises:
        ValueError: The lists differ in length, or are empty.
        TypeError: A member of `kwargs_tup` is no dict.
        Exception: What the first failing module raised, with notes that name replica and device.
            The other modules have ended by then.
    """
    if kwargs_tup is None:
        kwargs_tup = [{}] * len(modules)
    if devices is None:
        devices = [_place_of(arguments) or "cpu" for arguments in inputs]
    _check_lengths(modules=modules, inputs=inputs, kwargs_tup=kwargs_tup, devices=devices)
    for kwargs in kwargs_tup:
        if not isinstance(kwargs, dict):
            raise TypeError(
                "parallel_apply's third argument holds a dict of keyword arguments for each module;"
                f" got {type(kwargs).__name__} (devices are named: devices=…)"
            )
    places = as_devices(devices)
    calls = zip(modules, inputs, kwargs_tup, places, strict=True)
    modes = capture_modes(places)
    return collect(
        [
            place.submit(_apply, index, module, arguments, kwargs, place, modes)
            for index, (module, arguments, kwargs, place) in enumerate(calls)
        ]
    )


def _apply(
    index: int,
    module: Callable[..., Any],
    arguments: Any,
    kwargs: dict[str, Any],
    device: Device,
    modes: dict[str, Any],
) -> Any:
    if not isinstance(arguments, tuple | list):
        arguments = (arguments,)
    try:
        with modes_set(modes, device.device.type):
            return module(*arguments, **kwargs)
    except Exception as error:
        add_note(error, f"raised in replica {index} on {device}")
        raise


def _place_of(arguments: Any) -> torch.device | None:
    """Where the first tensor of a call is, if there is one."""
    if isinstance(arguments, torch.Tensor):
        return arguments.device
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if isinstance(arguments, tuple | list):
        for argument in arguments:
            place = _place_of(argument)
            if place is not None:
                return place
    return None


def _check_lengths(**lists: Sequence[Any]) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"parallel_apply needs lists of the same length; got {found}")
    if lengths["modules"] == 0:
        raise ValueError("parallel_apply needs at least one module; got none")
