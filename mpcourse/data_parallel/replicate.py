"""Copy a module onto several devices so that gradients find their way back (page `parallel_apply`).

Source: torch/nn/parallel/replicate.py, which refuses CPU devices. Same argument order and results.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mpcourse.devices.devices import DeviceLike, as_devices


def replicate(module: nn.Module, devices: Sequence[DeviceLike]) -> list[nn.Module]:
    """Make one replica of `module` per device.

    The first replica uses the original's own tensors, so what it writes into a buffer (batch norm's
    running statistics) is kept. The others get copies, which are gone with the replica. Copying is
    part of the autograd graph: the gradients of all replicas add up in the original's parameters.
    Parameters and submodules that are shared in the original are shared in each replica.

    Unlike torch's: a parameter that no replica uses keeps the gradient `None` (torch gives zeros).

    Args:
        module: The original; its parameters and buffers are on the first device.
        devices: One device per replica, in order.

    Returns:
        One module per device. A replica's `parameters()` is empty: its weights are no leaves of the
        graph but copies of the original's, so an optimizer has nothing to update there.

    Raises:
        ValueError: A parameter or buffer is not on the first device.
    """
    places = [device.device for device in as_devices(devices)]
    check_on_device(module, places[0])
    return [_replica(module, place, copy=index > 0) for index, place in enumerate(places)]


def check_on_device(module: nn.Module, place: torch.device) -> None:
    """Raise a ValueError that names the first parameter or buffer that is not on `place`."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device != place:
            raise ValueError(
                f"the module must be on {place}, the first device, but {name} is on "
                f'{tensor.device}; move it with module.to("{place}")'
            )


def _replica(module: nn.Module, place: torch.device, *, copy: bool) -> nn.Module:
    tensors = [*module.parameters(), *module.buffers()]
    copies = {tensor: _tensor_copy(tensor, place, copy=copy) for tensor in tensors}
    # the same hook that torch calls: a module with hidden state (an LSTM) copies it there
    shells = {child: child._replicate_for_data_parallel() for child in module.modules()}
    for original, shell in shells.items():
        for name, child in original._modules.items():
            shell._modules[name] = None if child is None else shells[child]
        for name, parameter in original._parameters.items():
            if parameter is None:
                shell._parameters[name] = None
            else:  # a plain attribute: only leaves of the graph may be Parameters
                setattr(shell, name, copies[parameter])
        for name, buffer in original._buffers.items():
            shell._buffers[name] = None if buffer is None else copies[buffer]
    return shells[module]


def _tensor_copy(tensor: torch.Tensor, place: torch.device, *, copy: bool) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter) or tensor.requires_grad:
        # `expand_as` shares the memory and, like the copy, is a node of the graph
        return _Copy.apply(tensor, place) if copy else tensor.expand_as(tensor)
    return tensor.detach().to(place, copy=True) if copy else tensor


class _Copy(torch.autograd.Function):
    """`tensor.to(place, copy=True)`, but a sparse gradient (of an embedding) finds its way back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
        ctx.home = tensor.device
        # a copy to the CPU must block: nothing would say when a non-blocking one has arrived
        return tensor.to(place, non_blocking=place.type != "cpu", copy=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.to(ctx.home), None
