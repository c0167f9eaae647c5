"""GPUs that are not there: tensors with a shape and a place, but without numbers.

Page `split_a_model`.

Code inside `pretended_gpus()` names its GPUs as usual, "cuda:1". Its tensors are torch's fake
tensors, and the pretended GPU k is what torch calls `cpu:k`, a place that no machine has. Fake
tensors on "cuda" itself would need a driver as soon as gradients are on, and end the process on a
torch that was built without CUDA; on `cpu:k` they work with gradients everywhere.

Source: torch/_subclasses/fake_tensor.py. It is private to torch, so it may move one day.
"""

import contextlib
import copy
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from mpcourse.devices.workers import shield

try:
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        FakeTensor,
        FakeTensorMode,
    )
except ImportError:
    FakeTensorMode = None

LAST = torch.device("cuda", 1)
GPU_NAME = re.compile(r"cuda(?::(\d+))?")
FROM_HOST = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
PLACE = re.compile(r"\bcpu(?::\d+)?\b")
TWO_DEVICES = re.compile(r"\btwo (different )?devices\b")  # torch 2.9 says "different"


class DevicesMet(RuntimeError):
    """An operation was given tensors on two devices; the words are those of torch on real GPUs."""


class Pretence:
    """What `pretended_gpus` gives its block; `moving` is True while a module is being moved."""

    def __init__(self, fake: Any) -> None:
        self.moving = False
        self._fake = fake
        self._twins: dict[int, Any] = {}  # of all calls, so that shared parameters stay shared

    def twin(self, thing: Any) -> Any:
        """A copy without numbers of tensors and modules on the CPU, or nests of them.

        The originals stay as they are; anything else is its own twin.
        """
        return tree_map(self._twin, thing)

    def _twin(self, leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            for tensor in [*leaf.parameters(), *leaf.buffers()]:
                self._twin(tensor)
            return copy.deepcopy(leaf, self._twins)
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.device.type != "cpu":
            raise ValueError(f"what comes in lies on the CPU, as on a host; got {leaf.device}")
        with shield():
            return self._twins.setdefault(id(leaf), self._fake.from_tensor(leaf))


@contextlib.contextmanager
def pretended_gpus() -> Iterator[Pretence]:
    """Run what is inside as if this machine had two GPUs, "cuda:0" and "cuda:1".

    Modules are built inside, or come in as `pretence.twin(module)`. Asked for its device, a tensor
    on the pretended GPU 1 says `cpu:1`, which may be handed on.
    Tensors on two devices in one operation raise `DevicesMet`.
    """
    if FakeTensorMode is None:
        words = "has no torch._subclasses.fake_tensor, which pretended GPUs stand on"
        raise RuntimeError(f"torch {torch.__version__} {words}; torch 2.9 to 2.15 have it")
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    pretence = Pretence(fake)
    try:
        with _quiet(), _modules_move(pretence), fake, _GpuNames():
            yield pretence
    except DataDependentOutputException as problem:
        words = "a pretended tensor has no numbers: leave out item(), print and if on values"
        raise RuntimeError(words) from problem
    except RuntimeError as problem:
        if not TWO_DEVICES.search(str(problem)):
            raise
        found = sorted(gpu_name(torch.device(name)) for name in PLACE.findall(str(problem))[-2:])
        devices = "found at least two devices, {} and {}!".format(*found)
        words = f"Expected all tensors to be on the same device, but {devices}"
        raise DevicesMet(words).with_traceback(problem.__traceback__) from None


def gpu_name(place: torch.device) -> str:
    """What code inside calls a place: "cpu" for the host, else the name of a GPU."""
    return "cpu" if place.index is None else str(torch.device("cuda", place.index))


class _GpuNames(TorchFunctionMode):
    """Turns the names of pretended GPUs into the places that stand for them."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is torch.device:  # a name is turned where it is used, not where it is made
            return func(*args, **(kwargs or {}))
        with shield():  # raised where torch's C++ calls Python, `Cancelled` would end the process
            return self._call(func, args, kwargs)

    def _call(self, func: Callable, args: tuple, kwargs: dict | None) -> Any:
        args, kwargs = list(args), dict(kwargs or {})
        if func is Tensor.cuda:
            where = args.pop(1) if len(args) > 1 else kwargs.pop("device", None)
            func, kwargs = Tensor.to, {"device": "cuda" if where is None else where, **kwargs}
        if func is Tensor.to and len(args) > 1:
            args[1] = _gpu_of(args[1])
        if "device" in kwargs:
            kwargs["device"] = _gpu_of(kwargs["device"])
        args, kwargs = tree_map(self._place, (args, kwargs))
        if func is Tensor.to:
            return _moved(*args, **kwargs)
        if func is Tensor.new_tensor:
            kwargs["device"] = kwargs.get("device") or args[0].device
        if func in FROM_HOST and kwargs.get("device"):
            place = kwargs.pop("device")  # the fake forms of these ignore the index of a CPU
            return _moved(func(*args, **kwargs), place)
        return func(*args, **kwargs)

    def _place(self, name: Any) -> Any:
        is_name = isinstance(name, torch.device | str) and GPU_NAME.fullmatch(str(name))
        if not is_name:
            return name
        index = int(is_name[1] or 0)
        if index > 1:
            raise RuntimeError(f"invalid device ordinal: {name} (the last pretended GPU is {LAST})")
        return torch.device("cpu", index)


def _gpu_of(place: Any) -> Any:
    """What torch takes a number for where it wants a device."""
    return torch.device("cuda", place) if type(place) is int else place


def _moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    places = [given for given in (*args, *kwargs.values()) if isinstance(given, torch.device)]
    if places and isinstance(tensor, FakeTensor):
        tensor.constant = None  # a single number that torch knows would be copied for real
    return tensor.to(*args, **kwargs)


@contextlib.contextmanager
def _modules_move(pretence: Pretence) -> Iterator[None]:
    """Let `module.to` move fake parameters, which torch's own way of moving them refuses."""
    apply, thread = nn.Module._apply, threading.get_ident()

    def move(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        own = [*module._parameters.values(), *module._buffers.values()]
        own = [tensor for tensor in own if tensor is not None]
        if threading.get_ident() != thread or not own:
            return apply(module, fn, recurse)
        if not all(isinstance(tensor, FakeTensor) for tensor in own):
            raise TypeError("a module from outside: hand in its twin, or build it inside")
        for child in module.children() if recurse else ():
            child._apply(fn)
        grads = [tensor.grad for tensor in own if tensor.grad is not None]
        pretence.moving = True
        try:
            for tensor in own + grads:
                moved = fn(tensor)
                tensor.data = moved  # a new type of numbers, but not a new place
                tensor.fake_device = moved.fake_device
        finally:
            pretence.moving = False
        return module

    with mock.patch.object(nn.Module, "_apply", move):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's log of every error that it raises as well."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    with mock.patch.object(log, "disabled", True):
        yield
