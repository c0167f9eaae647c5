"""Cut a batch over devices and bring the pieces together again (page `scatter_and_gather`).

Source: torch/nn/parallel/scatter_gather.py, which refuses CPU devices. Same argument order, same
chunk sizes, same results; what differs is said in each docstring.
"""

import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from mpcourse.devices.devices import Device, DeviceLike, as_devices


def scatter(inputs: Any, devices: Sequence[DeviceLike], dim: int = 0) -> list[Any]:
    """Cut every tensor in `inputs` along `dim`, one chunk per device.

    The chunks are as large as one another except the last: ceil(rows / devices) rows each, as
    `torch.chunk` cuts. So there can be fewer chunks than devices. Tuples, named tuples, lists and
    dicts are taken apart and put together again; what is no tensor goes to every device as it is,
    in lists and dicts of that device's own. Gradients flow back through the cut.

    Unlike torch's: always a list (torch returns a tuple for a tensor), and two things are an error:
    for several devices, tensors of different sizes in `dim` (torch pairs rows that do not belong
    together, and drops chunks without a partner); and a batch without rows (torch hands every
    device an empty chunk).

    Args:
        inputs: A tensor of 1 or more dimensions on any device, or a nest of them.
        devices: Where the chunks go, in order.
        dim: The dimension to cut.

    Returns:
        A list with one `inputs`-shaped value per chunk. A chunk that is already in place is a view,
        not a copy.
    """
    places = as_devices(devices)
    parts = _scatter(inputs, places, dim, set())
    return [_own(inputs) for _ in places] if parts is None else parts


def _scatter(value: Any, devices: list[Device], dim: int, sizes: set[int]) -> list[Any] | None:
    """The parts of `value`, or None when no tensor is in it and each device gets all of it.

    `sizes`: of the tensors of this call, in `dim`; one alone where there are several devices.
    """
    if isinstance(value, torch.Tensor):
        chunks = _chunks(value, len(devices), dim)
        sizes.add(value.size(dim))
        if len(devices) > 1 < len(sizes):
            found = " and ".join(map(str, sorted(sizes)))
            raise ValueError(
                f"tensors have the sizes {found} in dimension {dim}: what is cut must belong "
                "together; give them the same size, or hand over a float for one number"
            )
        places = [device.device for device in devices[: len(chunks)]]
        return [  # a copy to the CPU must block: nothing would say when it has arrived
            chunk.to(place, non_blocking=place.type != "cpu")
            for chunk, place in zip(chunks, places, strict=True)
        ]
    if not isinstance(value, tuple | list | dict) or isinstance(value, PackedSequence):
        refuse_hidden_tensors(value)
        return None
    fields = _fields(value)
    parts = [_scatter(field, devices, dim, sizes) for field in fields]
    count = next((len(part) for part in parts if part is not None), None)
    if count is None:
        return None
    columns = [
        [_own(field) for _ in range(count)] if part is None else part
        for field, part in zip(fields, parts, strict=True)
    ]
    return [_like(value, row) for row in zip(*columns, strict=True)]


def refuse_hidden_tensors(value: Any) -> None:
    """Raise a TypeError for what holds tensors but is not taken apart: nobody could cut or join it.

    A packed sequence would be, as a named tuple; but its rows are no samples.
    """
    if isinstance(value, torch.Tensor) or callable(value):  # modules and functions go whole
        return
    if isinstance(value, Mapping):
        inside = list(value.values())
    elif isinstance(value, Set | tuple | list | deque):
        inside = list(value)
    else:
        names = (*getattr(value, "__dict__", ()), *getattr(value, "__slots__", ()))
        inside = [getattr(value, name, None) for name in names]
    if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(inside)):
        packed = isinstance(value, PackedSequence)
        how = "pad it, and pack it in the module" if packed else "pass its tensors in a dict"
        raise TypeError(f"a {type(value).__name__} is not taken apart: {how}")


def _chunks(tensor: torch.Tensor, count: int, dim: int) -> Sequence[torch.Tensor]:
    if tensor.dim() == 0:
        raise ValueError(
            f"a tensor of 0 dimensions has no rows to scatter (got {tensor.item()!r}); "
            "pass a plain number, which goes to every device, or give it a dimension"
        )
    if not -tensor.dim() <= dim < tensor.dim():
        allowed = f"{-tensor.dim()} to {tensor.dim() - 1}"
        raise ValueError(f"dim={dim} is not in {allowed}, the dimensions of {_shape(tensor)}")
    if tensor.size(dim) == 0:
        raise ValueError(f"the batch is empty: {_shape(tensor)} has size 0 in dimension {dim}")
    return tensor.chunk(count, dim)


def _shape(tensor: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)}"


def _own(value: Any) -> Any:
    """`value`, without a tensor in it, for one device, which may change its lists and dicts."""
    if not isinstance(value, tuple | list | dict):
        return value
    return _like(value, [_own(field) for field in _fields(value)])


def _keys(nest: tuple | list | dict) -> list[Any]:
    return list(nest) if isinstance(nest, dict) else list(range(len(nest)))


def _fields(nest: tuple | list | dict) -> list[Any]:
    return list(nest.values()) if isinstance(nest, dict) else list(nest)


def _like(original: Any, fields: Iterable[Any]) -> Any:
    """A tuple, named tuple, list or dict of the type of `original`, with other fields."""
    if isinstance(original, tuple):
        return getattr(original, "_make", type(original))(fields)  # only named tuples have _make
    new = copy.copy(original)  # keeps what the type has besides its fields
    for key, field in zip(_keys(original), fields, strict=True):
        new[key] = field
    return new


def scatter_kwargs(
    inputs: tuple, kwargs: dict[str, Any] | None, devices: Sequence[DeviceLike], dim: int = 0
) -> tuple[tuple[tuple, ...], tuple[dict[str, Any], ...]]:
    """Scatter the positional and the keyword arguments of one call into equally many parts.

    Unlike torch's: tensors of different sizes are refused, as by `scatter` (torch's last calls lack
    some of them), and arguments without a tensor make as many parts as the others have chunks
    (torch makes one per device, and with fewer chunks than devices the last calls lack their
    tensors).
    """
    places = as_devices(devices)
    named, sizes = kwargs or {}, set()
    input_parts, named_parts = (_scatter(each, places, dim, sizes) for each in (inputs, named))
    whole = range(len(places) if inputs or named else 0)  # no tensor: every device gets all
    parts = input_parts or named_parts or whole
    if input_parts is None:
        input_parts = [_own(inputs) for _ in parts]
    if named_parts is None:
        named_parts = [_own(named) for _ in parts]
    return tuple(input_parts), tuple(named_parts)


def gather(outputs: Sequence[Any], target_device: DeviceLike, dim: int = 0) -> Any:
    """Join what the replicas returned into one value on one device: scatter, backwards.

    Tensors are concatenated along `dim`; tensors of 0 dimensions (a loss each) become a vector.
    Nests are joined field by field, `None` stays `None`. Gradients flow back to each output.

    Args:
        outputs: One value per replica, all of the same structure.
        target_device: Where the joined tensors go.
        dim: The dimension to concatenate along.
    """
    if len(outputs) == 0:
        raise ValueError("outputs is empty; gather needs the output of at least one replica")
    return _gather(list(outputs), as_devices([target_device])[0], dim, "outputs[{}]")


def _gather(outputs: list[Any], device: Device, dim: int, where: str) -> Any:
    """Join `outputs`; `where` names the field in messages, with {} for the replica."""
    first = outputs[0]
    for replica, output in enumerate(outputs):
        if _kind(output) is not _kind(first):
            kinds = f"{_kind(output).__name__}, {where.format(0)} is {_kind(first).__name__}"
            raise ValueError(f"{where.format(replica)} is {kinds}; replicas must agree")
    if first is None:
        return None
    if isinstance(first, torch.Tensor):
        return _cat(outputs, device, dim, where)
    if not isinstance(first, tuple | list | dict) or isinstance(first, PackedSequence):
        kind = type(first).__name__
        raise TypeError(f"gather joins tensors; {where.format(0)} is {first!r} ({kind})")
    keys = _keys(first)
    for replica, output in enumerate(outputs):
        theirs = set(_keys(output))
        if theirs != set(keys):
            raise ValueError(
                f"{where.format(replica)} has the fields {sorted(map(str, theirs))}, "
                f"{where.format(0)} has {sorted(map(str, keys))}; replicas must agree"
            )
    return _like(
        first, [_gather([o[k] for o in outputs], device, dim, f"{where}[{k!r}]") for k in keys]
    )


def _kind(value: Any) -> type:
    return torch.Tensor if isinstance(value, torch.Tensor) else type(value)


def _cat(tensors: list[torch.Tensor], device: Device, dim: int, where: str) -> torch.Tensor:
    # a copy to the CPU must block: nothing would say when a non-blocking one has arrived
    rows = [tensor.to(device.device) for tensor in tensors]
    if all(tensor.dim() == 0 for tensor in tensors):
        rows = [row.unsqueeze(0) for row in rows]
    try:
        return torch.cat(rows, dim)
    except (RuntimeError, IndexError) as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(
            f"cannot join {where.format('i')} along {dim=}: shapes {shapes}"
        ) from error
