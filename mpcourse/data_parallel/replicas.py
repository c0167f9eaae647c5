"""Copies of a module that run at the same time, and `DataParallel` (page `parallel_apply`).

Source: torch/nn/parallel (replicate.py, parallel_apply.py, data_parallel.py), which refuses CPU
devices. Same argument order and results; the threads are the devices' workers, where torch starts
new ones for every call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from mpcourse.data_parallel.scatter_gather import gather, scatter_kwargs
from mpcourse.devices.devices import Device, DeviceLike, as_devices, capture_modes, modes_set
from mpcourse.devices.workers import add_note, run_together


def replicate(module: nn.Module, devices: Sequence[DeviceLike]) -> list[nn.Module]:
    """Make one replica of `module` per device.

    The first replica uses the original's own tensors, so what it writes into a buffer (batch norm's
    running statistics) is kept. The others get copies, which are lost with the replica. Copying is
    part of the autograd graph: the gradients of all replicas add up in the original's parameters.
    Parameters and submodules that are shared in the original are shared in each replica.

    Unlike torch's: a parameter that no replica uses keeps the gradient `None` (torch gives zeros).

    Args:
        module: The original; its parameters and buffers are on the first device.
        devices: One device per replica, in order.

    Returns:
        One module per device. A replica's `parameters()` is empty: its weights are no leaves of the
        graph but copies of the original's, so an optimizer has nothing to update there, and a
        forward that reads `self.parameters()` finds none (as torch's).
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
    """`tensor.to(place, copy=True)` whose backward also takes sparse gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
        ctx.home = tensor.device
        # a copy to the CPU must block: nothing would say when a non-blocking one has arrived
        return tensor.to(place, non_blocking=place.type != "cpu", copy=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.to(ctx.home), None


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
    return run_together(
        (place.worker, _apply, index, module, arguments, kwargs, place, modes)
        for index, (module, arguments, kwargs, place) in enumerate(calls)
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


class DataParallel(nn.Module):
    """Every device runs a replica of the module on its chunk of the batch.

    The gradients of all replicas add up in the original module, in `loss.backward()`. The wrapped
    module's `state_dict` keys start with "module.", as torch's do.

    Args:
        module: The original; its parameters and buffers are on the first device.
        devices: One replica each; a batch of few rows uses fewer.
        output_device: Where the outputs are gathered; the first device when `None`.
        dim: The dimension in which inputs are cut and outputs joined.
    """

    def __init__(
        self,
        module: nn.Module,
        devices: Sequence[DeviceLike],
        output_device: DeviceLike | None = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        self.module = module
        self.devices = as_devices(devices)
        target = self.devices[0] if output_device is None else output_device
        self.output_device = as_devices([target])[0]
        self.dim = dim

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Scatter the arguments, run the replicas, gather the outputs."""
        check_on_device(self.module, self.devices[0].device)
        chunks, named = scatter_kwargs(inputs, kwargs, self.devices, self.dim)
        if not chunks:  # a call without arguments still runs, on the first device
            chunks, named = ((),), ({},)
        if len(self.devices) == 1:  # nothing to copy and nothing to join
            return parallel_apply([self.module], chunks, named, self.devices)[0]
        devices = self.devices[: len(chunks)]
        replicas = replicate(self.module, devices)
        outputs = parallel_apply(replicas, chunks, named, devices)
        return gather(outputs, self.output_device, self.dim)
