"""Outcomes as JSON: what a learner's process says is read as data, and never as a program.

Tensors are their bytes, the course's own records their fields. Anything else arrives as an
`Unreadable`, which shows what it was and equals nothing.
"""

import base64
import collections
import dataclasses
import fractions
import itertools
import math
import sys
from typing import Any

import numpy as np
import torch

MOST_YIELDED = 100_000  # by an iterator
PLAIN = (type(None), bool, int, float, str)
MAKERS = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "iterator": iter,
    "dict": dict,
    "counter": lambda pairs: collections.Counter(dict(pairs)),
    "Fraction": lambda pair: fractions.Fraction(*pair),
    "device": lambda words: torch.device(*words),
    "dtype": lambda words: DTYPES[words[0]],
    "ellipsis": lambda _: ...,
    "other": lambda words: Unreadable(*words),
}
NAMES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64"
DTYPES = {name: getattr(torch, name) for name in NAMES.split()}


class Unreadable:
    """Something that was not read; its `repr` is what it was."""

    def __init__(self, words: str):
        self._words = str(words)

    def __repr__(self) -> str:
        return self._words


def encode(value: Any) -> Any:
    """What `json` can write of a value; raises RecursionError where a nest has no end."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, torch.Tensor) and not value.is_sparse:
        return ["tensor", *_bytes(value.detach().as_subclass(torch.Tensor)), value.requires_grad]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return ["array", *_bytes(torch.tensor(value)), False]
    if isinstance(value, np.generic):
        return encode(value.item())
    if kind.__module__.startswith("mpcourse.") and _fields(kind):
        return [
            f"{kind.__module__}:{kind.__name__}",
            *(encode(getattr(value, f)) for f in _fields(kind)),
        ]
    if isinstance(value, dict):
        name = "counter" if isinstance(value, collections.Counter) else "dict"
        return [name, *(encode(pair) for pair in value.items())]
    for name, known in {"tuple": tuple, "list": (list, range), "set": (set, frozenset)}.items():
        if isinstance(value, known):
            return [name, *map(encode, value)]
    if hasattr(value, "__next__"):
        return ["iterator", *map(encode, itertools.islice(value, MOST_YIELDED))]
    if isinstance(value, fractions.Fraction):
        return ["Fraction", value.numerator, value.denominator]
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value)
    name = kind.__name__ if kind in (torch.device, torch.dtype, type(...)) else "other"
    return [name, repr(value)[:200] if name == "other" else str(value).removeprefix("torch.")]


def decode(found: Any) -> Any:
    """The value again; ValueError for what `encode` never gives."""
    if type(found) in PLAIN:
        return found
    try:
        name, *parts = found
        if name in ("tensor", "array"):
            return _tensor(name, *parts)
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


def _bytes(value: torch.Tensor) -> tuple[str, list[int], str]:
    plain = value.cpu().resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    name = str(plain.dtype).removeprefix("torch.")
    return name, list(plain.shape), base64.b64encode(data).decode()


def _tensor(name: str, dtype: str, shape: list[int], data: str, needs_grad: bool) -> Any:
    raw = bytearray(base64.b64decode(data, validate=True))
    kind = DTYPES[dtype]
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(shape)
    if math.prod(shape) * kind.itemsize != len(raw):
        raise ValueError(shape)
    value = torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
    value = value.reshape(shape)
    return value.numpy() if name == "array" else value.requires_grad_(bool(needs_grad))
