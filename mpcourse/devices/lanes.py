"""How work gets onto each kind of device: thread counts on the CPU, streams on CUDA.

Page `start_here`.

A lane is what a `mpcourse.devices.workers.Worker` asks before, around and after each piece of work.
Source for the CUDA side: torch/cuda/streams.py, and the notes on CUDA semantics in torch's manual.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Lane:
    """What every kind of device may need; by itself it needs nothing."""

    def starting(self) -> contextlib.AbstractContextManager:
        """Surrounds the start of the worker's thread, in the thread that starts it."""
        return contextlib.nullcontext()

    def enter(self) -> None:
        """Set the worker's thread up; called once, in that thread."""

    def hand_in(self, arguments: Any) -> contextlib.AbstractContextManager:
        """Called where work is submitted; what it returns surrounds the work in the worker."""
        return contextlib.nullcontext()

    def fall_in(self) -> None:
        """Called where work that has ended, well or not, was waited for: what comes next waits."""

    def hand_out(self, value: Any) -> None:
        """Called where a value is taken, before it is used."""

    def synchronize(self) -> None:
        """Wait, in the worker, until the device has finished what was queued on it."""


_one_start = threading.Lock()  # the default is the process's: one start at a time may change it


def _in_new_thread(fn: Callable[..., Any], *args: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn, *args).result()


class CpuLane(Lane):
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

    def enter(self) -> None:
        """One thread: a core that stands in for a device must not borrow the other cores."""
        torch.set_num_threads(1)
        # asking matters: a thread takes the default at its first question, and it changes back
        if torch.get_num_threads() != 1:
            raise RuntimeError("torch ignores set_num_threads(1) in this worker's thread")


class GpuLane(Lane):
    """A whole GPU: the worker queues on the stream its caller uses, as torch.nn.parallel does.

    So the caller's next kernels queue behind the work, and handing out needs nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def enter(self) -> None:
        """Make the GPU this thread's current device."""
        torch.cuda.set_device(self.device)

    def hand_in(self, arguments: Any) -> contextlib.AbstractContextManager:
        """Put the work on the caller's stream, behind all that is queued there."""
        return torch.cuda.stream(torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Wait for all the GPU's streams."""
        torch.cuda.synchronize(self.device)


class GpuShareLane(GpuLane):
    """One of several shares of a GPU: a stream of its own, so that shares overlap.

    Streams do not wait for one another by themselves. The work waits for what its caller had
    queued; whoever takes the value waits for the work.
    """

    def __init__(self, device: torch.device, index: int, shares: int) -> None:
        super().__init__(device)
        self.index = index
        self.shares = shares

    @property
    def stream(self) -> torch.cuda.Stream:
        """The share's stream."""
        return share_streams(self.device.index, self.shares)[0][self.index]

    def hand_in(self, arguments: Any) -> contextlib.AbstractContextManager:
        """Let the share's stream wait for what the caller has queued so far."""
        return self._after(torch.cuda.current_stream(self.device).record_event(), arguments)

    @contextlib.contextmanager
    def _after(self, queued: torch.cuda.Event, arguments: Any) -> Iterator[None]:
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(queued)
            _keep_memory(arguments, self.stream)
            yield

    def fall_in(self) -> None:
        """Let the caller's stream wait for what the share has queued so far."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def hand_out(self, value: Any) -> None:
        """Keep the value's memory until the caller's stream has used it."""
        _keep_memory(value, torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Wait for the share's stream."""
        self.stream.synchronize()


def _keep_memory(value: Any, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that `stream` uses these tensors, so that their memory is not reused."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            leaf.record_stream(stream)


_one_cut = threading.Lock()  # two shares ask at once, and both must get the same streams


def share_streams(gpu: int, shares: int) -> tuple[list[torch.cuda.Stream], bool]:
    """Make one stream for each share of a GPU, where possible with multiprocessors of its own.

    Args:
        gpu: CUDA index of the GPU.
        shares: How many shares it is cut into.

    Returns:
        The streams, and whether each has its own multiprocessors (green contexts). Without them the
        GPU's scheduler decides how far the shares overlap.
    """
    with _one_cut:
        return _cut(gpu, shares)


@functools.cache
def _cut(gpu: int, shares: int) -> tuple[list[torch.cuda.Stream], bool]:
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
