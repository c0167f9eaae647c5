"""The time of a forward: dense kernels with zeros, sparse kernels, smaller dense layers."""

from collections.abc import Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from mpcourse.devices.devices import DeviceLike, as_devices, get_devices
from mpcourse.devices.timing import Timing, measure_together
from mpcourse.pruning.formats import to_csr
from mpcourse.pruning.layers import replace_layers
from mpcourse.pruning.masked import permanent_copy
from mpcourse.training.loop import evaluation_mode


class SparseLinear(nn.Module):
    """A copy of a Linear layer for inference, its weight stored and multiplied as CSR."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", to_csr(layer.weight))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    def forward(self, rows: Tensor) -> Tensor:
        """Take rows of shape (..., in) to (..., out)."""
        columns = rows.reshape(-1, rows.shape[-1]).T
        product = (self.weight @ columns).T  # torch's kernel wants the sparse matrix on the left
        product = product if self.bias is None else product + self.bias
        return product.reshape(*rows.shape[:-1], len(self.weight))


def to_sparse(model: nn.Module) -> nn.Module:
    """A copy of a model, without masks, whose Linear layers multiply sparsely.

    Convolutions stay dense: torch has no sparse kernel for them.

    Raises:
        ValueError: It has no Linear layer, or one that somebody has put hooks on.
    """
    plain = permanent_copy(model)
    linear = {n: layer for n, layer in plain.named_modules() if type(layer) is nn.Linear}
    if not linear:
        raise ValueError(f"{type(model).__name__} has no Linear layer to make sparse")
    return replace_layers(plain, {name: SparseLinear(layer) for name, layer in linear.items()})


def latencies(
    models: Mapping[str, nn.Module],
    sample: Tensor,
    device: DeviceLike | None = None,
    *,
    repeats: int = 7,
) -> dict[str, Timing]:
    """Time a forward of several models on one device, in turns, without gradients.

    Args:
        models: Name -> module, in evaluation mode while it is timed.
        sample: An input of all of them, on their device.
        device: Where they are; the first of `get_devices(1)` when `None`.
        repeats: Forwards of each model that count, after two to warm up.
    """
    [place] = get_devices(1) if device is None else as_devices([device])
    jobs = {
        name: lambda model=model: place.run(_forward, model, sample)
        for name, model in models.items()
    }
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(evaluation_mode(model))
        return measure_together(jobs, [place], repeats=repeats)


def _forward(model: nn.Module, sample: Tensor) -> Tensor:
    with torch.no_grad():  # in the worker: modes belong to a thread
        return model(sample)
