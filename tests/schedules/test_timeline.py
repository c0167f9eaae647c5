"""What is said about a run, from its events. Standard library only, like the module."""

import pytest

from mpcourse.schedules.timeline import Event, Timeline

RUNS = {  # name: ((device, start, end) each, devices, makespan, busy per device, bubble)
    "empty": ([], 2, 0.0, [0, 0], 0.0),
    "no devices": ([], 0, 0.0, [], 0.0),
    "one device, always busy": ([(0, 0, 2), (0, 2, 3)], 1, 3, [3], 0.0),
    "one device, late": ([(0, 1, 2)], 1, 2, [1], 0.5),
    "idle device": ([(0, 0, 2)], 2, 2, [2, 0], 0.5),
    "no time": ([(0, 0, 0)], 1, 0, [0], 0.0),
    # F0 F1  .
    #  . F0 F1
    "pipeline": ([(0, 0, 1), (0, 1, 2), (1, 1, 2), (1, 2, 3)], 2, 3, [2, 2], 1 / 3),
    "unequal": ([(0, 0, 3), (1, 3, 4)], 4, 4, [3, 1, 0, 0], 0.75),
}


def events_of(spans):
    return tuple(
        Event(device, f"job {i}", start, end) for i, (device, start, end) in enumerate(spans)
    )


@pytest.mark.parametrize("name", RUNS)
def test_makespan_busy_and_bubble_are_those_of_the_table(name):
    spans, devices, makespan, busy, bubble = RUNS[name]
    timeline = Timeline(events_of(spans), devices)
    assert timeline.makespan == makespan
    assert [timeline.busy(index) for index in range(devices)] == busy
    assert timeline.bubble_fraction == pytest.approx(bubble)


def test_rounding_never_makes_the_bubble_negative():
    switch, end = 0.025187637002984938, 0.25862537980850714
    spans = [span for i in range(3) for span in ((i, 0.0, switch), (i, switch, end))]
    events = events_of(spans)
    assert sum(event.duration for event in events) > 3 * end, "the case must round upwards"
    assert Timeline(events, 3).bubble_fraction == 0.0


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((2, 0, 1), "job 0: device 2 is not in 0 to 1"),
        ((-1, 0, 1), "job 0: device -1 is not in 0 to 1"),
        ((0, 2, 1), "job 0: runs from 2 to 1"),
        ((0, -0.5, 1), "job 0: runs from -0.5 to 1; it must start at 0 or later"),
    ],
)
def test_a_bad_event_is_refused_with_its_values(span, message):
    with pytest.raises(ValueError, match=message):
        Timeline(events_of([span]), 2)


def test_a_clock_starts_at_zero_and_keeps_durations_labels_and_gaps():
    measured = [Event(1, "b", 102.0, 103.5), Event(0, "a", 100.0, 101.0)]
    timeline = Timeline.from_clock(measured, 2)
    assert timeline.events == (Event(0, "a", 0.0, 1.0), Event(1, "b", 2.0, 3.5))


def test_events_that_start_together_are_in_order_of_their_devices():
    measured = [Event(device, "", 5.0, 6.0) for device in (2, 0, 1)]
    assert [e.device_index for e in Timeline.from_clock(measured, 3).events] == [0, 1, 2]


def test_a_device_waits_between_its_first_event_and_its_last():
    timeline = Timeline(events_of([(0, 1, 2), (0, 4, 5), (0, 5, 9), (1, 3, 9)]), 3)
    assert [timeline.waits(device) for device in range(3)] == [2, 0, 0]
