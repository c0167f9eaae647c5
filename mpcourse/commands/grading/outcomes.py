"""Outcomes as JSON: what a learner's process says is read as data, and never as a program.

Tensors are their numbers, the course's own records their fields. Anything else arrives as an
`Unreadable`, which shows what it was and equals nothing.
"""

import dataclasses
import sys
from numbers import Real
from typing import Any

import numpy as np
import torch

PLAIN = (type(None), bool, int, float, str)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Unreadable:
    """Something that was not read; its `repr` is what it was."""

    words: str

    def __repr__(self) -> str:
        return self.words


MAKERS = {"list": list, "tuple": tuple, "set": set, "dict": dict, "other": lambda x: Unreadable(*x)}


def encode(value: Any) -> Any:
    """What `json` can write of a value; raises RecursionError where a nest has no end."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.tensor(value)
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_complex():
        plain = value.detach().as_subclass(torch.Tensor)
        dtype = str(plain.dtype).removeprefix("torch.")
        return ["tensor", dtype, [*plain.shape], plain.flatten().tolist(), value.requires_grad]
    if isinstance(value, np.generic):
        return encode(value.item())
    for base, known in {int: int, str: str, float: Real}.items():
        if isinstance(value, known):
            return base(value)
    if kind.__module__.startswith("mpcourse.") and (fields := _fields(kind)):
        parts = [encode(getattr(value, field)) for field in fields]
        return [f"{kind.__module__}:{kind.__name__}", *parts]
    for name, known in {"list": (list, range), "tuple": tuple, "set": (set, frozenset)}.items():
        if isinstance(value, known):
            return [name, *map(encode, value)]
    if isinstance(value, dict):
        return ["dict", *map(encode, value.items())]
    return ["other", repr(value)[:200]]


def decode(found: Any) -> Any:
    """The value again; ValueError for what `encode` never gives."""
    if type(found) in PLAIN:
        return found
    try:
        name, *parts = found
        if name == "tensor":
            dtype, shape, numbers, needs_grad = parts
            value = torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(shape)
            return value.requires_grad_(bool(needs_grad))
        parts = [decode(part) for part in parts]
        if name in MAKERS:
            return MAKERS[name](parts)
        module, _, kind = name.partition(":")
        kind = vars(sys.modules[module])[kind]
        if not module.startswith("mpcourse.") or not isinstance(kind, type) or not _fields(kind):
            raise ValueError
        return kind(**dict(zip(_fields(kind), parts, strict=True)))
    except Exception as error:  # whoever wrote it has tried something
        raise ValueError(f"{type(error).__name__} where an outcome was read") from None


def _fields(kind: type) -> tuple[str, ...]:
    """Those of a dataclass or of a named tuple; of anything else none."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind) if field.init)
    return getattr(kind, "_fields", ())
