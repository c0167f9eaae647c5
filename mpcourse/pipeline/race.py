"""How page `pipeline` measures: its work, a clock on each stage, and rivals in pairs."""

import ctypes
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from mpcourse.data_parallel.anatomy import split_step_timeline
from mpcourse.devices.devices import Device
from mpcourse.devices.timing import (
    Timing,
    clock_for,
    limited,
    median_interval,
)
from mpcourse.pipeline.prediction import Line, SplitWork, StageLines, split_work
from mpcourse.schedules.actions import Action
from mpcourse.schedules.timeline import Timeline


def race_work(devices: Sequence[Device], pixels: int | None = None) -> SplitWork:
    """`split_work`, on CPU cores with 64 images; where pages are tested, with 16 small ones."""
    if devices[0].device.type != "cpu":
        work = split_work(devices, pixels)
        return dataclasses.replace(work, sizes=[work.sizes[0] // 4, *work.sizes])
    rows, skip, width = (64, 1, None) if limited(5) == 5 else (16, 3, 8)
    work = split_work(devices, pixels, width)
    return SplitWork(
        work.stages,
        work.images[:rows, :, ::skip, ::skip],
        work.labels[:rows],
        sorted({max(2, rows // 16), rows // 8, rows // 4, rows // 2, rows}),
    )


def keep_memory() -> None:
    """Let the C library keep freed memory: asking for it anew would be timed too."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for option, size in {-1: 2**30, -2: 2**27, -3: 2**25}.items():  # trim, pad, mmap limits
            libc.mallopt(option, size)


def noted_step(stages: Sequence[Any], step: Callable[[], Any]) -> Timeline:
    """Run the step with a clock on each stage, which notes when it works; return its timeline.

    A stage has a `place`, and `forward` and `backward` that take the number of a piece first.
    """
    clocks = [clock_for(stage.place) for stage in stages]

    def noted(kind: str, act: Callable, index: int, number: int, *given: Any, **named: Any) -> Any:
        start = clocks[index].now()
        value = act(number, *given, **named)
        clocks[index].note(Action(index, kind, number), start)
        return value

    for index, (stage, clock) in enumerate(zip(stages, clocks, strict=True)):
        clock.zero()
        stage.forward = functools.partial(noted, "F", stage.forward, index)
        stage.backward = functools.partial(noted, "B", stage.backward, index)
    try:
        step()
    finally:
        for stage in stages:
            del stage.forward, stage.backward  # those of the class come back
    events = [event for index, clock in enumerate(clocks) for event in clock.events(index)]
    return Timeline.from_clock(events, len(stages))


def tutorial_step(
    forward: Callable[[Tensor], Tensor],
    parts: Sequence[nn.Module],
    devices: Sequence[Device],
    batch: tuple[Tensor, Tensor],
    loss_fn: Callable[[Any, Any], Tensor],
) -> tuple[Timeline, int]:
    """One step with this forward: its timeline, and in how many threads gradients arrive."""
    found: set[int] = set()
    weights = [weight for part in parts for weight in part.parameters()]
    hooks = [w.register_hook(lambda _: found.add(threading.get_ident())) for w in weights]
    split = functools.partial(forward)  # it gets what is asked of a split model
    split.stages, split.devices = (lambda: parts), devices
    try:
        return split_step_timeline(split, *batch, loss_fn), len(found)
    finally:
        for hook in hooks:
            hook.remove()


def both_at_work(step: Timeline) -> float:
    """The share of a step in which devices 0 and 1 work at the same time."""
    ours, theirs = ([e for e in step.events if e.device_index == n] for n in (0, 1))
    pairs = [(a, b) for a in ours for b in theirs]
    return sum(max(0, min(a.end, b.end) - max(a.start, b.start)) for a, b in pairs) / step.makespan


def lines_table(lines: StageLines) -> str:
    """The line of each stage and direction, in words."""
    return "\n".join(
        f"stage {stage} {kind:8}: {line.fixed_s * 1e3:5.2f} ms + "
        f"{line.per_sample_s * 1e3:6.3f} ms per sample, measured here"
        for kind in ("forward", "backward")
        for stage, line in enumerate(getattr(lines, kind))
    )


class Verdict(NamedTuple):
    """How two programs compare, in words."""

    line: str  # the ratio, with its spread
    says: str  # "pays", "costs" or "cannot be told"


def verdict(times: Mapping[Any, Timing], ours: Any, theirs: Any) -> Verdict:
    """Their time over ours in each round of both: the middle, the least and the most."""
    pairs = zip(times[theirs].times_s, times[ours].times_s, strict=True)
    low, middle, high = median_interval([a / b for a, b in pairs])
    a, b = (
        f"your pipeline in size {way}" if isinstance(way, int) else way for way in (theirs, ours)
    )
    line = f"{a} took {middle:.2f} x as long as {b} ({low:.2f} to {high:.2f})"
    return Verdict(line, "pays" if low > 1 else "costs" if high < 1 else "cannot be told")


def without_fixed(lines: StageLines) -> StageLines:
    """The same lines with a fixed time of 0; a sample takes a nanosecond or more."""

    def free(directions: tuple[Line, ...]) -> tuple[Line, ...]:
        return tuple(Line(0.0, max(line.per_sample_s, 1e-9)) for line in directions)

    return dataclasses.replace(lines, forward=free(lines.forward), backward=free(lines.backward))
