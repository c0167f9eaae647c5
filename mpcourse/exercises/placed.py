"""Tensors that pretend to lie on devices which this machine does not have.

Their numbers are on the CPU. Only `device` and `to` are pretended, and what torch says when two
tensors meet that lie on different devices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


class Placed(Tensor):
    """A tensor that says it lies on `place`."""

    place: torch.device

    @classmethod
    def __torch_function__(
        cls, fn: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Do what torch does; refuse what no machine could do; say where the results lie."""
        kwargs = kwargs or {}
        if fn == Tensor.device.__get__:
            return args[0].place
        moves = {Tensor.to: _target(args, kwargs), Tensor.cpu: torch.device("cpu")}
        moves[Tensor.cuda] = torch.device("cuda")
        if moves.get(fn) is not None:
            return place_on(args[0], moves[fn])
        place = _common_place([*args, *kwargs.values()])
        result = super().__torch_function__(fn, types, args, kwargs)
        return tree_map(lambda leaf: _stamped(leaf, place), result)


def place_on(value: Tensor, place: torch.device) -> Placed:
    """The same numbers, as if they lay on `place`."""
    with torch._C.DisableTorchFunctionSubclass():
        return _stamped(value.detach().as_subclass(Placed), place)


def _stamped(value: Any, place: torch.device) -> Any:
    if isinstance(value, Placed):
        value.place = place
    return value


def _target(args: tuple, kwargs: dict) -> torch.device | None:
    """Where `.to(…)` moves to; None when it only changes the type."""
    named = [args[1]] if len(args) > 1 else []
    named += [kwargs[name] for name in ("device", "other") if name in kwargs]
    for each in named:
        if isinstance(each, Tensor):
            return each.device
        if isinstance(each, torch.device | str):
            return torch.device(each)
    return None


def _common_place(values: Sequence[Any]) -> torch.device:
    """The one place of all tensors; a tensor of 0 dimensions may lie anywhere, as in torch."""
    with torch._C.DisableTorchFunctionSubclass():  # asking would come here again
        tensors = [leaf for leaf in tree_leaves(list(values)) if isinstance(leaf, Tensor)]
        where = [(getattr(tensor, "place", tensor.device), tensor.dim()) for tensor in tensors]
    places = list(dict.fromkeys(place for place, dim in where if dim > 0))
    if len(places) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{places[0]} and {places[1]}!"
        )
    return (places or [place for place, _ in where])[0]
