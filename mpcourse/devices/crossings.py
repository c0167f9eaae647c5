"""How a value gets from one device's worker to another's (page `pipeline`).

On CUDA a call returns before its work is done, so an event goes along that says when the value is
there. Between two GPUs torch copies on the source's current stream and lets the current streams of
both GPUs wait for each other: on the streams that compute, the source's next kernels would wait for
the target. So the copies have streams of their own.

Source: aten/src/ATen/native/cuda/Copy.cu in torch; torchgpipe/copy.py.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def leave(device: torch.device) -> Any:
    """On CUDA an event that says when the value is there; on the CPU it is there already."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def arrive(value: Any, ready: Any, device: torch.device) -> Any:
    """Bring a value to a device, behind the event that says when it is there.

    Args:
        value: A tensor or a nest of tensors.
        ready: What `leave` returned where the value was made. None: it is there, on this device or
            on the CPU.
        device: Where the calling worker computes.
    """
    if device.type == "cpu":
        if ready is None:
            return value
        ready.synchronize()  # nothing on the CPU waits for an event by itself
        return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, value)
    stream = torch.cuda.current_stream(device)
    if ready is not None:
        stream.wait_event(ready)

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.is_cuda and leaf.device != device:
            return _copied(leaf, ready, device)
        if leaf.is_cuda and ready is not None:
            leaf.record_stream(stream)
        return leaf.to(device, non_blocking=True)

    return tree_map(move, value)


def _copied(value: Tensor, ready: Any, device: torch.device) -> Tensor:
    """A copy from another GPU, beside what both compute."""
    stream = torch.cuda.current_stream(device)
    out, into = _copy_streams(value.device.index, device.index)
    out.wait_event(ready)
    with torch.cuda.stream(out), torch.cuda.stream(into):
        copy = value.to(device, non_blocking=True)
    value.record_stream(out)
    stream.wait_stream(into)
    copy.record_stream(stream)  # it was allocated for the stream that copied
    return copy


@functools.cache
def _copy_streams(source: int, target: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """One on each of two GPUs, for the copies from one to the other."""
    return torch.cuda.Stream(source), torch.cuda.Stream(target)
