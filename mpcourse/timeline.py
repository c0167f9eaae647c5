"""Who worked when: the events of a run, measured or simulated (page 00). Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One piece of work on one device.

    Attributes:
        device_index: Which device did it, from 0.
        action: What it was; its `str` is the label in pictures.
        start: When it began, in the unit of the timeline, from 0.
        end: When it ended, not before `start`.
    """

    device_index: int
    action: object
    start: float
    end: float

    @property
    def duration(self) -> float:
        """How long the work took, in the unit of the timeline."""
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """The events of one run over some devices. Measured ones are in seconds.

    Attributes:
        events: One event per action, in order of their start.
        num_devices: How many devices took part, also those that did nothing.
    """

    events: tuple[Event, ...]
    num_devices: int

    def __post_init__(self) -> None:
        for event in self.events:
            if not 0 <= event.device_index < self.num_devices:
                allowed = f"0 to {self.num_devices - 1}"
                raise ValueError(f"{event.action}: device {event.device_index} is not in {allowed}")
            if event.end < event.start or event.start < 0:
                span = f"{event.start} to {event.end}"
                raise ValueError(f"{event.action}: runs from {span}; it must start at 0 or later")

    @classmethod
    def from_clock(cls, events: Sequence[Event], num_devices: int) -> "Timeline":
        """Make a timeline of events whose times come from one clock: the first starts at 0."""
        zero = min((event.start for event in events), default=0.0)
        moved = [Event(e.device_index, e.action, e.start - zero, e.end - zero) for e in events]
        return cls(tuple(sorted(moved, key=lambda e: (e.start, e.device_index))), num_devices)

    @property
    def makespan(self) -> float:
        """When the last event ends."""
        return max((event.end for event in self.events), default=0.0)

    def busy(self, device_index: int) -> float:
        """How long one device worked, in the unit of the timeline."""
        return sum(e.duration for e in self.events if e.device_index == device_index)

    @property
    def bubble_fraction(self) -> float:
        """The idle share of all devices: 1 - busy / (devices x makespan); 0 without events."""
        available = self.num_devices * self.makespan
        if available == 0:
            return 0.0
        return 1 - sum(self.busy(index) for index in range(self.num_devices)) / available
