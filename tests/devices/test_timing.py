"""A time is honest: the devices have finished before each reading of the clock."""

import threading
import time

import pytest
import torch

from mpcourse.devices.devices import describe_devices, get_devices, synchronize
from mpcourse.devices.timing import (
    LIMIT,
    Timing,
    describe_machine,
    limited,
    measure,
    measure_awake,
    measure_overlap,
    measure_timeline,
    measure_together,
    median_interval,
)


@pytest.fixture
def devices():
    return get_devices(2)


def test_measure_waits_for_work_that_fn_only_hands_over(devices):
    def hand_over():
        devices[0].submit(time.sleep, 0.1)

    waited = measure(hand_over, devices, warmup=1, repeats=3)
    not_waited = measure(hand_over, [devices[1]], warmup=1, repeats=3)
    synchronize(devices)
    assert waited.median_s > 3 * not_waited.median_s


def test_measure_waits_for_all_devices_used_so_far_when_none_are_named(devices):
    done = []
    timing = measure(
        lambda: devices[1].submit(lambda: time.sleep(0.05) or done.append(1)), warmup=0, repeats=1
    )
    assert done == [1]
    assert timing.devices == "all devices used so far"


def test_measure_does_not_count_what_was_handed_over_before(devices):
    before = devices[0].submit(time.sleep, 0.5)
    timing = measure(lambda: None, devices, warmup=0, repeats=1)
    assert before.done()
    assert timing.median_s < 0.5 / 2


@pytest.mark.parametrize(("warmup", "repeats"), [(0, 1), (2, 7), (3, 1), (0, 4)])
def test_fn_runs_warmup_plus_repeats_times_and_repeats_are_counted(devices, warmup, repeats):
    calls = []
    timing = measure(lambda: calls.append(1), devices, warmup=warmup, repeats=repeats)
    assert len(calls) == warmup + repeats
    assert (timing.warmup, timing.repeats, len(timing.times_s)) == (warmup, repeats, repeats)
    assert all(seconds > 0 for seconds in timing.times_s)


def test_bad_counts_are_refused_before_fn_runs_and_so_are_too_few_jobs(devices):
    calls = []
    for warmup, repeats in [(-1, 1), (0, 0), (2, -3)]:
        with pytest.raises(ValueError, match=f"repeats 1 or more; got {warmup} and {repeats}"):
            measure(lambda: calls.append(1), devices, warmup=warmup, repeats=repeats)
    assert calls == []
    for jobs in ([], [int], [int] * 3):
        with pytest.raises(ValueError, match=f"one job; got {len(jobs)} for 2 devices"):
            measure_overlap(jobs, devices)
    for rounds in ([], [[]], [[("cpu", "job", int)], []]):
        with pytest.raises(ValueError, match="jobs is empty"):
            measure_timeline(*rounds)


@pytest.mark.parametrize(
    ("times", "median", "iqr"),
    [
        ((3.0,), 3.0, 0.0),
        ((1.0, 3.0), 2.0, 1.0),
        ((1.0, 2.0, 3.0, 4.0), 2.5, 1.5),
        ((5.0, 1.0, 100.0), 5.0, 49.5),
        ((2.0, 2.0, 2.0, 2.0, 90.0), 2.0, 0.0),
    ],
)
def test_median_and_spread_are_those_of_the_table(times, median, iqr):
    timing = Timing(times, 0, "", "")
    assert timing.median_s == pytest.approx(median)
    assert timing.iqr_s == pytest.approx(iqr)


def test_a_timing_prints_milliseconds_spread_repeats_and_devices():
    timing = Timing((0.001, 0.002, 0.003, 0.004), 2, "2 cores", "a machine")
    assert str(timing) == "2.50 ms (spread 1.50 ms), median of 4, 2 cores"


def test_a_timing_says_where_it_was_measured(devices):
    timing = measure(lambda: None, devices, warmup=0, repeats=1)
    assert timing.machine == describe_machine()
    assert torch.__version__ in timing.machine
    assert timing.devices == describe_devices(devices)


def test_functions_measured_together_take_turns(devices):
    order = []
    fns = {name: lambda name=name: order.append(name) for name in "abc"}
    timings = measure_together(fns, devices, warmup=1, repeats=2)
    assert "".join(order) == "abc" + "abcabc"
    assert list(timings) == ["a", "b", "c"]
    assert [timing.repeats for timing in timings.values()] == [2, 2, 2]


def test_each_group_of_functions_is_woken_after_a_pause(monkeypatch):
    order = []
    monkeypatch.setattr(time, "sleep", lambda seconds: order.append("."))
    fns = {name: lambda name=name: order.append(name) for name in "abc"}
    groups = [{name: fns[name] for name in names} for names in ("ab", "c")]
    timings = measure_awake(*groups, repeats=2)
    assert "".join(order) == ".aab.cc" * 2
    assert list(timings) == ["a", "b", "c"]
    assert [timing.repeats for timing in timings.values()] == [2, 2, 2]


def test_where_pages_are_tested_few_repeats_count(devices, monkeypatch):
    assert limited(49) == 49
    monkeypatch.setenv(LIMIT, "2")
    assert (limited(49), limited(1)) == (2, 1)
    order = []
    timings = measure_together({n: lambda n=n: order.append(n) for n in "ab"}, devices, repeats=9)
    assert "".join(order) == "abab" + "abab"  # two rounds warm up
    assert [timing.repeats for timing in timings.values()] == [2, 2]


def test_overlap_is_one_on_two_devices_and_the_number_of_jobs_on_one(devices):
    jobs = [lambda: time.sleep(0.1)] * 2
    assert measure_overlap(jobs, devices) < 1.5
    assert measure_overlap(jobs, [devices[0]] * 2) > 1.5


def overlap(first, second):
    return first.start < second.end and second.start < first.end


def test_jobs_of_two_devices_overlap_in_the_timeline(devices):
    together = threading.Barrier(2)
    jobs = [(device, i, lambda: together.wait(timeout=30)) for i, device in enumerate(devices)]
    timeline = measure_timeline(jobs)
    assert timeline.num_devices == 2
    assert overlap(*timeline.events)


def test_jobs_of_one_device_follow_one_another_in_the_order_given(devices):
    jobs = [(devices[0], label, lambda: time.sleep(0.01)) for label in "abc"]
    timeline = measure_timeline(jobs)
    assert [event.action for event in timeline.events] == ["a", "b", "c"]
    assert timeline.num_devices == 1
    assert not any(
        overlap(*pair) for pair in zip(timeline.events, timeline.events[1:], strict=False)
    )


def test_a_timeline_starts_at_zero_and_numbers_devices_as_they_appear(devices):
    turn = threading.Event()
    jobs = [
        (devices[1], "first", turn.set),
        (devices[0], "second", lambda: turn.wait(30)),
        (devices[1], "third", lambda: None),
    ]
    timeline = measure_timeline(jobs)
    assert {e.action: e.device_index for e in timeline.events} == {
        "first": 0,
        "second": 1,
        "third": 0,
    }
    assert timeline.events[0].start == 0
    assert timeline.makespan == max(event.end for event in timeline.events)


def test_a_round_begins_when_all_of_the_round_before_has_ended():
    devices = get_devices(3)
    first = [(devices[1], "long", lambda: time.sleep(0.1)), (devices[0], "short", int)]
    second = [(devices[0], "next", int), (devices[2], "last", int)]
    events = {event.action: event for event in measure_timeline(first, second).events}
    ended = max(events["long"].end, events["short"].end)
    assert min(events["next"].start, events["last"].start) >= ended
    numbers = {action: event.device_index for action, event in events.items()}
    assert numbers == {"long": 0, "short": 1, "next": 1, "last": 2}


@pytest.mark.gpu
def test_measure_waits_for_kernels_that_fn_only_queues():
    devices = get_devices(2)

    def queue_kernels():
        devices[0].run(torch.cuda._sleep, 20_000_000)

    waited = measure(queue_kernels, devices)
    start = time.perf_counter()
    queue_kernels()
    queued_s = time.perf_counter() - start
    synchronize(devices)
    assert waited.median_s > 2 * queued_s


@pytest.mark.parametrize("count", [7, 17, 41])
def test_the_true_median_lies_in_its_interval_in_19_of_20_samples(count):
    draws = torch.randn(4000, count, generator=torch.Generator().manual_seed(0))  # true median 0
    rows = [median_interval(row) for row in draws.tolist()]
    assert all(middle == row.median() for (_, middle, _), row in zip(rows, draws, strict=True))
    assert 0.94 < sum(low < 0 < high for low, _, high in rows) / 4000 < 0.995


def test_few_values_lie_between_the_least_and_the_most():
    assert median_interval([3, 1, 2]) == (1, 2, 3)
    assert median_interval([2, 1]) == (1, 2, 2)  # as many as where pages are tested
