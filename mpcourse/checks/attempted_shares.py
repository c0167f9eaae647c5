"""The share of devices in use: timelines to read it from (page `resnet50_on_two_devices`)."""

from typing import Any

from mpcourse.checks.verdict import Case, same
from mpcourse.schedules.actions import Action
from mpcourse.schedules.timeline import Event, Timeline

F0, F1, B1 = Action(0, "F", 0), Action(1, "F", 0), Action(1, "B", 0)

Known = list[tuple[Any, str]]


def exercise_timeline() -> Timeline:
    """The timeline of the exercise: a step over two devices, with its two copies."""
    return _timeline(2, (0, F0, 4), (0, "copy", 1), (1, F1, 4), (1, B1, 8), (1, "copy", 1))


def _timeline(num_devices: int, *jobs: tuple[int, Action | str, float]) -> Timeline:
    """One job after the other, whichever device has it; at last a backward on device 0."""
    events, now = [], 0.0
    for device, action, duration in (*jobs, (0, Action(0, "B", 0), 8)):
        events.append(Event(device, action, now, now + duration))
        now += duration
    return Timeline(tuple(events), num_devices)


def share_cases() -> list[Case]:
    """Timelines, each with its share and with the wrong ones that people give."""
    both = (Event(0, F0, 0, 4), Event(0, "copy", 4, 5), Event(1, F1, 5, 8))
    idle = _timeline(3, (0, F0, 4), (1, "copy", 2))
    return [
        _share_case(
            "0F0 from 0 to 4 and a copy from 4 to 5 on device A, then 1F0 from 5 to 8 on device B "
            "beside 0F1 from 5 to 10 on device A",
            Timeline((*both, Event(0, Action(0, "F", 1), 5, 10)), 2),
        ),
        _share_case("the timeline above", exercise_timeline()),
        _share_case(
            "0F0 from 0 to 4 and 0F1 from 4 to 10 on device A, 1F0 from 5 to 8 on device B",
            Timeline(
                (Event(0, F0, 0, 4), Event(0, Action(0, "F", 1), 4, 10), Event(1, F1, 5, 8)), 2
            ),
        ),
        _share_case("three devices, of which two compute nothing", idle),
    ]


def _share_case(given: str, timeline: Timeline) -> Case:
    work = sum(event.duration for event in timeline.events if event.action != "copy")
    every = sum(event.duration for event in timeline.events)
    whole, devices = timeline.makespan, timeline.num_devices
    right = work / (devices * whole)
    first = sum(e.duration for e in timeline.events if e.action != "copy" and e.device_index == 0)
    known: Known = [
        (every / (devices * whole), "Copies count as work there: nothing is computed meanwhile."),
        (1 - right, "That is the idle share; asked is the share in use."),
        (timeline.bubble_fraction, "That is idle, not in use, and copies count as work in it."),
        (work / whole, "Each device has the whole step: divide by the number of devices too."),
        (every / whole, "Divide by the number of devices too, and leave the copies out."),
        (work / every, "Waiting is time as well: divide by devices × the time of the step."),
        (
            work / (devices * (whole - (every - work))),
            "The step lasts as long as it does: copies are in it.",
        ),
        (work / (2 * whole), "There may be other than two devices: timeline.num_devices."),
        (first / whole, "That is the first device alone."),
        (
            work / (devices * timeline.events[-1].end),
            "The last event to begin may end before another.",
        ),
        (work, "Those are units of time; a share has none."),
        (100 * right, "That is in percent; give a share between 0 and 1."),
    ]
    hint = "(time in which devices compute) / (devices × time of the whole step)"
    return Case(given, (timeline,), right, known, hint, same_number)


def same_number(result: Any, expected: Any) -> bool:
    """Equal, where a number may also be an array or a tensor that holds one."""
    is_one = getattr(result, "size", None) == 1 or getattr(result, "numel", list)() == 1
    return same(result.item() if is_one else result, expected)
