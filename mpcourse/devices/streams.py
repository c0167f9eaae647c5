"""How work gets onto each kind of device: thread counts on the CPU, streams on CUDA.

Pages `start_here` and `pipeline`.

A `StreamContext` surrounds the jobs of a `mpcourse.devices.workers.Worker`. On CUDA a call returns
before its work is done, so what passes from one stream to another goes with an event, and the
allocator is told who uses its memory. Source: torch/cuda/streams.py, the notes on CUDA semantics
in torch's manual; for copies aten/src/ATen/native/cuda/Copy.cu and torchgpipe/copy.py.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

from mpcourse.devices.locks import fork_safe_lock


class StreamContext:
    """What surrounds the jobs of a worker; by itself nothing."""

    def starting(self) -> contextlib.AbstractContextManager:
        """Surrounds the start of the worker's thread, in the thread that starts it."""
        return contextlib.nullcontext()

    def set_up(self) -> None:
        """Prepare the worker's thread; called once, in that thread."""

    def around_job(self, arguments: Any) -> contextlib.AbstractContextManager:
        """Called where work is submitted; what it returns surrounds the work in the worker."""
        return contextlib.nullcontext()

    def wait_stream(self) -> None:
        """Make the caller's stream wait for this one."""

    def record_stream(self, value: Any) -> None:
        """Keep the value's memory until the caller's stream has used it."""

    def synchronize(self) -> None:
        """Wait, in the worker, until the device has finished what was queued on it."""


_one_start = fork_safe_lock()  # the default is the process's: one start at a time may change it


def _in_new_thread(fn: Callable[..., Any], *args: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn, *args).result()


class CpuCore(StreamContext):
    """One CPU core: the worker's thread computes with one thread.

    The cores share one memory and a CPU call returns when its work is done, so that nothing has to
    be handed over and nothing waited for.
    """

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Keep the thread count of whoever starts the worker, and the default of later threads.

        `set_num_threads(1)` holds for the thread that calls it, but also becomes the default of
        every thread that has not computed yet: asking first makes the caller's count its own. The
        default is asked for and set again in threads of their own, for the caller may be a worker
        with its one thread.
        """
        with _one_start:
            count = torch.get_num_threads()
            default = _in_new_thread(torch.get_num_threads)
            try:
                yield
            finally:
                _in_new_thread(torch.set_num_threads, default)
            if torch.get_num_threads() != count:
                raise RuntimeError(f"torch uses {torch.get_num_threads()} threads, not {count}")

    def set_up(self) -> None:
        """One thread: a core that stands in for a device must not borrow the other cores."""
        torch.set_num_threads(1)
        # asking matters: a thread takes the default at its first question, and it changes back
        if torch.get_num_threads() != 1:
            raise RuntimeError("torch ignores set_num_threads(1) in this worker's thread")


class WholeGpu(StreamContext):
    """A whole GPU: the worker queues on the stream its caller uses, as torch.nn.parallel does.

    So the caller's next kernels queue behind the work, and a value can be used at once.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def set_up(self) -> None:
        """Make the GPU this thread's current device."""
        torch.cuda.set_device(self.device)

    def around_job(self, arguments: Any) -> contextlib.AbstractContextManager:
        """Put the work on the caller's stream, behind all that is queued there."""
        return torch.cuda.stream(torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Wait for all the GPU's streams."""
        torch.cuda.synchronize(self.device)


class GpuShare(WholeGpu):
    """One of several shares of a GPU: a stream of its own, so that shares overlap.

    Streams do not wait for one another by themselves. The work waits for what its caller had
    queued; whoever takes the value waits for the work.
    """

    def __init__(self, device: torch.device, index: int, shares: int) -> None:
        super().__init__(device)
        self.index = index
        self.shares = shares

    def set_up(self) -> None:
        """Make the GPU current. A gradient may come to a weight from another share's stream.

        Torch lets the one stream wait for the other, and from 2.10 on warns that it does.
        """
        super().set_up()
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    @property
    def stream(self) -> torch.cuda.Stream:
        """The share's stream."""
        return share_streams(self.device.index, self.shares)[0][self.index]

    def around_job(self, arguments: Any) -> contextlib.AbstractContextManager:
        """Let the share's stream wait for what the caller has queued so far."""
        return self._after(torch.cuda.current_stream(self.device).record_event(), arguments)

    @contextlib.contextmanager
    def _after(self, queued: torch.cuda.Event, arguments: Any) -> Iterator[None]:
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(queued)
            _record_stream(arguments, self.stream)
            yield

    def wait_stream(self) -> None:
        """Make the caller's stream wait for what the share has queued so far."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def record_stream(self, value: Any) -> None:
        """Keep the value's memory until the caller's stream has used it."""
        _record_stream(value, torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Wait for the share's stream."""
        self.stream.synchronize()


def _record_stream(value: Any, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that `stream` uses these tensors, so that their memory is not reused.

    Modules count with all they hold: a replica's weights are copies, attributes like any others.
    """
    leaves = tree_leaves(value)
    modules = [m for leaf in leaves if isinstance(leaf, nn.Module) for m in leaf.modules()]
    for leaf in (*leaves, *tree_leaves([vars(module) for module in modules])):
        if isinstance(leaf, Tensor) and leaf.is_cuda:
            for part in memory_of(leaf):
                part.record_stream(stream)


def memory_of(value: Tensor) -> list[Tensor]:
    """The plain tensors that a tensor consists of: one with zeros left out has several."""
    if is_traceable_wrapper_subclass(value):  # 2:4 zeros, torchao's integers
        parts = [getattr(value, name) for name in value.__tensor_flatten__()[0]]
        return [plain for part in parts for plain in memory_of(part)]
    value = value.detach()
    if value.layout == torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return [value]


def record_event(value: Any, device: torch.device) -> torch.cuda.Event | None:
    """On CUDA an event behind what has made `value` on `device`; the CPU has nothing queued."""
    if device.type == "cpu":
        return None
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor) and leaf.is_cuda and leaf.device != device:
            raise ValueError(_astray(leaf, device))
    return torch.cuda.current_stream(device).record_event()


def _astray(value: Tensor, device: torch.device) -> str:
    return (
        f"a stage on {device} hands on a tensor on {value.device}, whose kernels nobody waits for: "
        f'end the stage with .to("{device}")'
    )


def copy_after(event: torch.cuda.Event | None, value: Any, device: torch.device) -> Any:
    """Copy a nest of tensors to the device where the calling worker computes, behind an event.

    The event is of `record_event`, where the value was made; None: that was on the CPU. What is on
    the device is not copied.
    """
    if device.type == "cpu":
        if event is None:
            return value
        event.synchronize()  # nothing on the CPU waits for an event by itself
        return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, value)
    stream = torch.cuda.current_stream(device)
    if event is not None:
        stream.wait_event(event)

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.is_cuda and event is None:
            raise ValueError(_astray(leaf, torch.device("cpu")))
        if leaf.is_cuda and leaf.device != device:
            return _copy_between_gpus(leaf, event, device)
        if leaf.is_cuda:
            _record_stream(leaf, stream)
        return leaf.to(device, non_blocking=True)

    return tree_map(copy, value)


def _copy_between_gpus(value: Tensor, event: torch.cuda.Event, device: torch.device) -> Tensor:
    """Copy on streams of its own, beside what both GPUs compute.

    torch copies on the source's current stream and lets the current streams of both GPUs wait for
    each other: on the streams that compute, the source's next kernels would wait for the target.
    """
    stream = torch.cuda.current_stream(device)
    source, target = _copy_streams(value.device.index, device.index)
    source.wait_event(event)
    with torch.cuda.stream(source), torch.cuda.stream(target):
        copy = value.to(device, non_blocking=True)
    _record_stream(value, source)
    stream.wait_stream(target)
    _record_stream(copy, stream)  # it was allocated for the stream that copied
    return copy


@functools.cache
def _copy_streams(source: int, target: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """One on each of two GPUs, for the copies from one to the other."""
    return torch.cuda.Stream(source), torch.cuda.Stream(target)


_one_partition = fork_safe_lock()  # two shares ask at once, and both must get the same streams


def share_streams(gpu: int, shares: int) -> tuple[list[torch.cuda.Stream], bool]:
    """Make one stream for each share of a GPU, where possible with multiprocessors of its own.

    Returned are the streams, and whether each has its own multiprocessors (green contexts). Without
    them the GPU's scheduler decides how far the shares overlap.
    """
    with _one_partition:
        return _partition(gpu, shares)


@functools.cache
def _partition(gpu: int, shares: int) -> tuple[list[torch.cuda.Stream], bool]:
    try:
        return _streams_with_own_multiprocessors(gpu, shares), True
    except (ImportError, AttributeError, TypeError, RuntimeError):
        # an older torch, driver or GPU, or more shares than the multiprocessors can be cut into
        return [torch.cuda.Stream(gpu) for _ in range(shares)], False


_green_contexts: list[Any] = []  # a stream lives only as long as its context


def _streams_with_own_multiprocessors(gpu: int, shares: int) -> list[torch.cuda.Stream]:
    from torch.cuda.green_contexts import GreenContext, SMPartition  # newer than torch 2.9

    whole = SMPartition.from_device(gpu)
    step = max(1, whole.coscheduled_sm_count)
    each = whole.sm_count // shares // step * step
    if each == 0:  # which `split` takes for "as many as there are"
        raise RuntimeError(f"{whole.sm_count} multiprocessors cannot be cut into {shares} shares")
    partitions, _ = whole.split(num_sms=[each] * shares)
    with torch.cuda.device(gpu):
        torch.cuda.synchronize()  # a green context wants the GPU's own one in this thread
        contexts = [GreenContext(sm_partition=partition) for partition in partitions]
    _green_contexts.extend(contexts)
    return [context.Stream() for context in contexts]
