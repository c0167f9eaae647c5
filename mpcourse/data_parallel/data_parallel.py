"""Data parallelism out of the four verbs: scatter, replicate, parallel_apply, gather.

Page `parallel_apply`.

Source: torch/nn/parallel/data_parallel.py, which only runs on GPUs and elsewhere calls the module.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from mpcourse.data_parallel.parallel_apply import parallel_apply
from mpcourse.data_parallel.replicate import check_on_device, replicate
from mpcourse.data_parallel.scatter_gather import gather, scatter_kwargs
from mpcourse.devices.devices import DeviceLike, as_devices


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
