"""A stand-in for torch.cuda that keeps account of who waits for whom.

Nothing computes here. A stream knows which kernels are over before its next one begins, and when
that is; an event carries this from stream to stream. A kernel that reads what need not be written
yet, and memory that is given back while somebody may still read it, are races: they are found
whatever the threads do, because only what waits for what counts, not what came first.

After torch/cuda/streams.py, aten/src/ATen/native/cuda/Copy.cu (a copy between two GPUs is a kernel
on the source's current stream, and both current streams wait for each other) and
c10/cuda/CUDACachingAllocator.cpp (a block is given out again on its own stream at once, and only
later if a stream that was recorded has not come so far).
"""

import contextlib
import functools
import itertools
import threading
import weakref
from dataclasses import dataclass, field

import torch

from mpcourse.devices import devices as devices_module
from mpcourse.devices import streams

Moment = tuple["Stream", int]  # a stream, and how many kernels it has run then


class Stream:
    """A queue of kernels."""

    def __init__(self, cuda: "PretendCuda", gpu: int, name: str) -> None:
        self.cuda, self.name = cuda, name
        self.device = torch.device("cuda", gpu)
        self.over: dict[Stream, int] = {self: 0}  # before its next kernel begins
        self.free_at = 0.0  # seconds of the stand-in's own clock

    def queue(self, seconds: float = 0.0) -> Moment:
        self._pass(self.cuda.host.over, self.cuda.host.free_at)
        self.over[self] += 1
        self.free_at += seconds
        return self, self.over[self]

    def _pass(self, over: dict["Stream", int], at: float) -> None:
        for stream, count in over.items():
            self.over[stream] = max(count, self.over.get(stream, 0))
        self.free_at = max(self.free_at, at)

    def is_behind(self, moment: Moment) -> bool:
        stream, count = moment
        return self.over.get(stream, 0) >= count

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event(self.cuda)
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        self.cuda.note("synchronize", self.name)
        self.cuda.host._pass(self.over, self.free_at)

    def __repr__(self) -> str:
        return self.name


class Event:
    """A place in a stream."""

    def __init__(self, cuda: "PretendCuda", enable_timing: bool = False) -> None:
        self.cuda, self.enable_timing = cuda, enable_timing
        self.stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        with self.cuda.lock:
            self.stream = stream or self.cuda.current_stream()
            self.over, self.at = dict(self.stream.over), self.stream.free_at
            self.waits_before = self.cuda.waits

    def wait(self, stream: Stream | None = None) -> None:
        with self.cuda.lock:
            if self.stream is not None:  # torch waits for nothing, too, when nothing was recorded
                (stream or self.cuda.current_stream())._pass(self.over, self.at)

    def synchronize(self) -> None:
        with self.cuda.lock:
            self.cuda.note("synchronize", "event")
            self.cuda.host._pass(self.over, self.at)

    def elapsed_time(self, end: "Event") -> float:
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'")
        if self.stream is None or end.stream is None:
            raise ValueError("Both events must be recorded before calculating elapsed time")
        if self.stream.device != end.stream.device:
            raise RuntimeError("the events are of two devices")
        waits = self.cuda.waits  # even an idle stream needs a moment to come to an event
        if any(e.at > self.cuda.host.free_at or e.waits_before == waits for e in (self, end)):
            raise RuntimeError("device not ready: an event is not over yet")
        return (end.at - self.at) * 1e3


@dataclass(eq=False)
class Memory:
    """What a tensor lies in: allocated for one stream, in use by those that were recorded."""

    cuda: "PretendCuda"
    home: Stream
    written: Moment
    read: list[Moment] = field(default_factory=list)
    recorded: set[Stream] = field(default_factory=set)

    def given_back(self) -> None:
        with self.cuda.lock:
            for moment in self.read:
                if not any(s.is_behind(moment) for s in (self.home, *self.recorded)):
                    who = f"{self.home}'s memory is given back while {moment[0]} may read it"
                    self.cuda.races.append(who)


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True
    memory: Memory

    @property
    def device(self) -> torch.device:
        return self.memory.home.device

    def record_stream(self, stream: Stream) -> None:
        self.memory.recorded.add(stream)

    def to(self, place: torch.device, *, non_blocking: bool = False, copy: bool = False):
        if copy and torch.device(place) == self.device:
            return self.memory.cuda.kernel("copy", self)
        return self.memory.cuda.copied(self, torch.device(place), non_blocking)

    def cpu(self) -> torch.Tensor:
        return self.to("cpu")

    def detach(self) -> "OnGpu":
        return self


class OnHost(torch.Tensor):
    """A tensor on the CPU that can be brought to a pretended GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    cuda_here: "PretendCuda"

    def to(self, place: torch.device, *, non_blocking: bool = False, copy: bool = False):
        stream = self.cuda_here.current_stream(place)
        copy = self.cuda_here.kernel("copy", gpu=stream.device.index)
        if not non_blocking:
            stream.synchronize()
        return copy


class PretendCuda:
    """So many GPUs.

    Attributes:
        races: What may go wrong, in words.
        asked: (What, of what, in which thread), of the calls that are noted.
        kernels: (Name, its place in its stream, when it begins and ends), as they were queued.
    """

    def __init__(self, gpus: int, copy_seconds: float = 0.0) -> None:
        self.gpus, self.copy_seconds = gpus, copy_seconds
        self.lock = threading.RLock()
        self.races: list[str] = []
        self.asked: list[tuple[str, object, str]] = []
        self.kernels: list[tuple[object, Moment, tuple[float, float]]] = []
        self.host = Stream(self, 0, "host")
        self.defaults = [Stream(self, gpu, f"default stream {gpu}") for gpu in range(gpus)]
        self._numbers = itertools.count()
        self._here = threading.local()

    @property
    def waits(self) -> int:
        """How often the host has waited for something so far."""
        return sum(what == "synchronize" for what, _, _ in self.asked)

    def note(self, what: str, of: object) -> None:
        self.asked.append((what, of, threading.current_thread().name))

    # what torch.cuda has

    def current_device(self) -> int:
        return getattr(self._here, "gpu", 0)

    def set_device(self, device: object) -> None:
        self._here.gpu = self._index(device)
        self.note("set_device", self._here.gpu)

    def _index(self, device: object) -> int:
        if device is None:
            return self.current_device()
        if isinstance(device, int):
            return device
        device = torch.device(device)
        assert device.type == "cuda", f"CUDA is asked for {device}"
        return self.current_device() if device.index is None else device.index

    def current_stream(self, device: object = None) -> Stream:
        gpu = self._index(device)
        return self._streams().get(gpu, self.defaults[gpu])

    def _streams(self) -> dict[int, Stream]:
        if not hasattr(self._here, "streams"):
            self._here.streams = {}
        return self._here.streams

    def new_stream(self, device: object = None) -> Stream:
        gpu = self._index(device)
        return Stream(self, gpu, f"stream {next(self._numbers)} of GPU {gpu}")

    @contextlib.contextmanager
    def stream(self, stream: Stream):
        gpu, streams = self.current_device(), dict(self._streams())
        self._here.gpu = stream.device.index
        self._streams()[stream.device.index] = stream
        try:
            yield
        finally:
            self._here.gpu, self._here.streams = gpu, streams

    @contextlib.contextmanager
    def on_device(self, device: object):
        before, self._here.gpu = self.current_device(), self._index(device)
        try:
            yield
        finally:
            self._here.gpu = before

    def synchronize(self, device: object = None) -> None:
        gpu = self._index(device)
        with self.lock:
            self.note("synchronize", gpu)
            for stream in self.all_streams():
                if stream.device.index == gpu:
                    self.host._pass(stream.over, stream.free_at)

    def all_streams(self) -> list[Stream]:
        return [*self.defaults, *{moment[0]: None for _, moment, _ in self.kernels}]

    # what runs on a GPU

    def kernel(self, name: object, *inputs: OnGpu, seconds: float = 0.0, gpu: int | None = None):
        """Read the inputs, write a new tensor on their GPU, on the current stream there."""
        with self.lock:
            places = {value.device.index for value in inputs if isinstance(value, OnGpu)}
            if len(places) > 1:
                self.races.append(f"{name} reads tensors of GPUs {sorted(places)}")
            gpu = self._index(gpu) if not places else min(places)
            stream = self.current_stream(gpu)
            self._read(name, stream, inputs)
            return self._new(stream, self._queued(name, stream, seconds))

    def _read(self, name: object, stream: Stream, inputs: tuple) -> None:
        stream._pass(self.host.over, self.host.free_at)
        for value in inputs:
            if isinstance(value, OnGpu):
                if not stream.is_behind(value.memory.written):
                    writer = value.memory.written[0]
                    self.races.append(f"{name} on {stream} reads what {writer} may still write")
                value.memory.read.append((stream, stream.over[stream] + 1))

    def _queued(self, name: object, stream: Stream, seconds: float) -> Moment:
        moment = stream.queue(seconds)
        self.kernels.append((name, moment, (stream.free_at - seconds, stream.free_at)))
        return moment

    def _new(self, home: Stream, written: Moment) -> OnGpu:
        value = torch.zeros(()).as_subclass(OnGpu)
        value.memory = Memory(self, home, written)
        weakref.finalize(value, value.memory.given_back)
        return value

    def copied(self, value: OnGpu, place: torch.device, non_blocking: bool):
        with self.lock:
            if place == value.device:
                return value
            source = self.current_stream(value.device)
            if place.type == "cpu":
                self._read("copy", source, (value,))
                moment = self._queued("copy", source, self.copy_seconds)
                if non_blocking:
                    self.races.append(f"the host reads what {source} may still write")
                self.host._pass(dict([moment]), source.free_at)
                return self.on_host()
            target = self.current_stream(place)
            source.wait_stream(target)
            self._read("copy", source, (value,))
            moment = self._queued("copy", source, self.copy_seconds)
            target.wait_stream(source)
            return self._new(target, moment)

    def on_host(self) -> OnHost:
        value = torch.zeros(()).as_subclass(OnHost)
        value.cuda_here = self
        return value

    def runs(self, name: object) -> tuple[float, float]:
        """When the kernel of this name begins and ends."""
        [times] = [times for other, _, times in self.kernels if other == name]
        return times

    def stream_of(self, name: object) -> Stream:
        """The stream that the kernels of this name run on."""
        [stream] = {moment[0] for other, moment, _ in self.kernels if other == name}
        return stream


def pretend_cuda(monkeypatch, gpus: int = 1, copy_seconds: float = 0.0) -> PretendCuda:
    """Let torch.cuda be the stand-in, and devices have new workers, until the test ends."""
    cuda = PretendCuda(gpus, copy_seconds)
    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: gpus,
        "get_device_name": lambda device: "Pretended",
        "get_device_capability": lambda device: (9, 0),
        "current_device": cuda.current_device,
        "set_device": cuda.set_device,
        "device": cuda.on_device,
        "current_stream": cuda.current_stream,
        "default_stream": lambda device=None: cuda.defaults[cuda._index(device)],
        "stream": cuda.stream,
        "Stream": cuda.new_stream,
        "Event": lambda enable_timing=False: Event(cuda, enable_timing),
        "synchronize": cuda.synchronize,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)

    def refuse(gpu, shares):
        raise RuntimeError("no green contexts here")

    monkeypatch.setattr(streams, "_streams_with_own_multiprocessors", refuse)
    for name in ("_partition", "_copy_streams"):  # what they remember is of other GPUs
        monkeypatch.setattr(streams, name, functools.cache(getattr(streams, name).__wrapped__))
    monkeypatch.setattr(devices_module, "_workers", {})
    return cuda
