"""One step of a part, run forward as the caller says (page `does_it_fit`)."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn


def one_step(part: nn.Module, forward: Callable[[nn.Module, Tensor], Tensor]) -> list[Tensor]:
    """Make one step on the same rows as every other one; return all gradients and buffers."""
    with torch.random.fork_rng(devices=[]), _seeded():
        torch.default_generator.manual_seed(7)
        rows = torch.randn(8, 4, requires_grad=True)
        forward(part, rows).square().sum().backward()
    gradients = [rows.grad, *(p.grad for p in part.parameters())]
    found = [tensor for tensor in [*gradients, *part.buffers()] if tensor is not None]
    return [tensor.detach().clone() for tensor in found]


@contextmanager
def _seeded() -> Iterator[None]:
    """Two steps draw the same from Python and numpy: only a second forward tells them apart."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
