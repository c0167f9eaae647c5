"""Who worked when: the events of a run, measured or simulated. Standard library only.

Page `start_here`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple


class Event(NamedTuple):
    """One piece of work on one device, from `start` to `end` in the unit of the timeline."""

    device_index: int
    action: object  # its `str` is the label in pictures
    start: float
    end: float

    @property
    def duration(self) -> float:
        """How long the work took, in the unit of the timeline."""
        return self.end - self.start


def in_order(events: Sequence[Event]) -> tuple[Event, ...]:
    """Events by their start, those of one start by their device."""
    by_device = sorted(events, key=itemgetter(0))
    return tuple(sorted(by_device, key=itemgetter(2)))  # a stable sort: the first one stays within


@dataclass(frozen=True)
class Timeline:
    """The events of one run over some devices. Measured ones are in seconds.

    Attributes:
        events: One event per action, in order of their start.
        num_devices: How many devices took part, also those that did nothing.
        recompute: Which stages ran their forwards again, a flag per stage; empty: none.
    """

    events: tuple[Event, ...]
    num_devices: int
    recompute: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        for device, action, start, end in self.events:
            if not 0 <= device < self.num_devices:
                allowed = f"0 to {self.num_devices - 1}"
                raise ValueError(f"{action}: device {device} is not in {allowed}")
            if not 0 <= start <= end:
                span = f"{start} to {end}"
                raise ValueError(f"{action}: runs from {span}; it must start at 0 or later")

    @classmethod
    def from_clock(
        cls, events: Sequence[Event], num_devices: int, recompute: tuple[bool, ...] = ()
    ) -> "Timeline":
        """Make a timeline of events whose times come from one clock: the first starts at 0."""
        zero = min((event.start for event in events), default=0.0)
        moved = [Event(e.device_index, e.action, e.start - zero, e.end - zero) for e in events]
        return cls(in_order(moved), num_devices, recompute)

    @property
    def makespan(self) -> float:
        """When the last event ends."""
        return max((event.end for event in self.events), default=0.0)

    def busy(self, device_index: int) -> float:
        """How long one device worked, in the unit of the timeline."""
        return sum(e.duration for e in self.events if e.device_index == device_index)

    def waits(self, device_index: int) -> float:
        """How long one device did nothing between its first event and the end of its last."""
        own = [event for event in self.events if event.device_index == device_index]
        if not own:
            return 0.0
        began, ended = min(e.start for e in own), max(e.end for e in own)
        return max(0.0, ended - began - self.busy(device_index))

    @property
    def bubble_fraction(self) -> float:
        """The idle share of all devices: 1 - busy / (devices x makespan); 0 without events."""
        available = self.num_devices * self.makespan
        if available == 0:
            return 0.0
        busy = sum(event.duration for event in self.events)
        return max(0.0, 1 - busy / available)  # rounding must not make it -1e-16

    @property
    def activations_in_flight(self) -> list[list[tuple[float, int]]]:
        """Per device, how many stage-micro-batches it holds: (from when on, how many), in order.

        Each is held from the start of its forward (an action of kind F) to the end of its backward
        (B, or W when it is split). One without a backward is held to the end. A stage that
        recomputes holds its own from the start of its backward (B or I).
        """
        return self._in_flight({False: "F", True: "BI"})

    @property
    def inputs_in_flight(self) -> list[list[tuple[float, int]]]:
        """The same for the inputs that stages hold which recompute, from F to B or W."""
        return self._in_flight({False: "", True: "F"})

    def _in_flight(self, starts: Mapping[bool, str]) -> list[list[tuple[float, int]]]:
        """What is held from the start of the kinds named for stages without and with recompute."""
        changes = []  # (when, device, one more or one less)
        for event in sorted(self.events, key=lambda e: e.start):
            kind, stage = (getattr(event.action, k, None) for k in ("kind", "stage_index"))
            begins = starts[bool(self.recompute) and kind is not None and self.recompute[stage]]
            if kind is not None and kind in begins:
                changes.append((event.start, event.device_index, 1))
            if begins and kind in ("B", "W"):
                changes.append((event.end, event.device_index, -1))
        counts = [[(0.0, 0)] for _ in range(self.num_devices)]
        # the sort is stable: a backward that ends when a forward starts was there before it
        for when, device, change in sorted(changes, key=lambda c: c[0]):
            counts[device].append((when, counts[device][-1][1] + change))
        return counts

    @property
    def peak_activations(self) -> list[int]:
        """Per device, the most stage-micro-batches whose activations it held at once."""
        return [max(number for _, number in steps) for steps in self.activations_in_flight]

    @property
    def peak_inputs(self) -> list[int]:
        """Per device, the most inputs of stages that recompute which it held at once."""
        return [max(number for _, number in steps) for steps in self.inputs_in_flight]
