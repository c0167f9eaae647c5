"""The modes that belong to a thread, carried into the workers: gradients, inference, autocast."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mpcourse.devices.devices import Device


def capture_modes(devices: Sequence[Device]) -> dict[str, Any]:
    """The caller's modes; a worker's thread knows nothing of them.

    Args:
        devices: Where they are to hold; autocast is asked for by the kind of device.
    """
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
