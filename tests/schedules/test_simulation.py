import re
import time
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import ONE_EACH, legal_schedules, parse, spans

from mpcourse.schedules.actions import Schedule
from mpcourse.schedules.simulation import Costs, costs_from, count_transfers, simulate
from mpcourse.schedules.standard import (
    gpipe_schedule,
    interleaved_schedule,
    naive_schedule,
    one_f_one_b_schedule,
)
from mpcourse.schedules.timeline import Event, Timeline
from mpcourse.schedules.validate import validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule


def test_two_stages_by_hand() -> None:
    timeline = simulate(gpipe_schedule(2, 2), Costs(1, 2))
    assert spans(timeline) == "0F0@0-1 0F1@1-2 1F0@1-2 1F1@2-3 1B0@3-5 0B0@5-7 1B1@5-7 0B1@7-9"
    assert [e.device_index for e in timeline.events] == [0, 0, 1, 1, 1, 0, 1, 0]
    assert timeline.makespan == 9
    assert timeline.bubble_fraction == pytest.approx(1 / 3)


def test_costs_per_stage_and_a_transfer_per_boundary() -> None:
    costs = Costs([1, 2, 3], [4, 5, 6], transfer=[10, 20, 999])
    assert spans(simulate(gpipe_schedule(3, 1), costs)) == (
        "0F0@0-1 1F0@11-13 2F0@33-36 2B0@36-42 1B0@62-67 0B0@77-81"
    )


def test_the_closed_form_holds_in_928_configurations() -> None:
    count = 0
    for p, m, backward in product(range(1, 9), range(1, 30), (1, 2)):
        for schedule in (gpipe_schedule(p, m), one_f_one_b_schedule(p, m)):
            timeline = simulate(schedule, Costs(1, backward))
            assert timeline.makespan == (1 + backward) * (m + p - 1)
            assert timeline.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))
            count += 1
    assert count == 928


def test_gpipe_holds_all_and_1f1b_at_most_p_minus_rank() -> None:
    for p, m in product(range(1, 7), range(1, 9)):
        assert simulate(gpipe_schedule(p, m), ONE_EACH).peak_activations == [m] * p
        peaks = simulate(one_f_one_b_schedule(p, m), ONE_EACH).peak_activations
        assert peaks == [min(m, p - rank) for rank in range(p)]


def test_forwards_alone_can_be_simulated() -> None:
    timeline = simulate(parse("0F0 0F1\n1F0 1F1"), Costs(1, 2))
    assert timeline.makespan == 3
    assert timeline.peak_activations == [2, 2]  # nothing gives them back
    assert simulate([[], []], Costs(1, 2)) == Timeline((), 2)


def test_a_schedule_that_cannot_run_raises_instead_of_hanging() -> None:
    with pytest.raises(ValueError, match="deadlock: device 0 waits with 0B0 for 1B0 of device 1"):
        simulate(parse("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"), Costs(1, 2))
    with pytest.raises(ValueError, match="device 0: 0F0 stands twice"):
        simulate(parse("0F0 0F0"), Costs(1, 2))


times = st.floats(0, 100)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, Costs]:
    """Any schedule with any costs, per stage or for all."""
    schedule, num_stages, _ = draw(legal_schedules(most=4))
    per_stage = st.lists(times, min_size=num_stages, max_size=num_stages)
    return schedule, Costs(*(draw(times | per_stage) for _ in range(5)))


@given(cases())
@settings(deadline=None, max_examples=150)
def test_every_action_starts_as_soon_as_it_can_and_never_earlier(
    case: tuple[Schedule, Costs],
) -> None:
    schedule, costs = case
    timeline = simulate(schedule, costs)
    done = {str(event.action): event for event in timeline.events}
    assert len(done) == len(timeline.events) == sum(map(len, schedule))
    stages = 1 + max(action.stage_index for row in schedule for action in row)
    transfer = costs.per_stage("transfer", stages)
    names = {"F": "forward", "B": "backward", "I": "input_backward", "W": "weight_backward"}

    def arrival(maker: str, boundary: int, device: int) -> float:
        crosses = done[maker].device_index != device
        return done[maker].end + (transfer[boundary] if crosses else 0)

    for device, row in enumerate(schedule):
        free = 0.0
        for action in row:
            stage, kind, mb = action
            event = done[str(action)]
            ready = [free]
            if kind == "F" and stage > 0:
                ready.append(arrival(f"{stage - 1}F{mb}", stage - 1, device))
            if kind == "W":
                ready.append(done[f"{stage}I{mb}"].end)
            if kind in "BI":
                ready.append(done[f"{stage}F{mb}"].end)
                if stage < stages - 1:
                    after = "B" if f"{stage + 1}B{mb}" in done else "I"
                    ready.append(arrival(f"{stage + 1}{after}{mb}", stage, device))
            assert event.device_index == device
            assert event.start == max(ready)
            assert event.end == event.start + costs.per_stage(names[kind], stages)[stage]
            free = event.end
    assert timeline.events == tuple(sorted(timeline.events, key=lambda event: event.start))


@given(legal_schedules(most=4), times, times)
@settings(deadline=None, max_examples=100)
def test_the_peak_is_the_smallest_cap_that_the_checker_accepts(
    case: tuple[Schedule, int, int], forward: float, backward: float
) -> None:
    schedule, num_stages, num_microbatches = case
    costs = Costs(forward, backward, 0, backward, backward)
    peak = max(simulate(schedule, costs).peak_activations)
    validate_schedule(schedule, num_stages, num_microbatches, peak)
    if peak > 1:
        with pytest.raises(ValueError, match=f"max_activations is {peak - 1}"):
            validate_schedule(schedule, num_stages, num_microbatches, peak - 1)


@pytest.mark.parametrize(
    "work",
    [
        lambda schedule, p, m: simulate(schedule, Costs(1, 2)),
        lambda schedule, p, m: validate_schedule(schedule, p, m),
    ],
    ids=["simulate", "validate_schedule"],
)
def test_time_grows_in_proportion_to_the_number_of_actions(work: Callable) -> None:
    def best(p: int, m: int, repeats: int) -> float:
        schedule = one_f_one_b_schedule(p, m)
        seconds = []
        for _ in range(repeats):
            begin = time.thread_time()  # not the clock: the machine may have other work
            work(schedule, p, m)
            seconds.append(time.thread_time() - begin)
        return min(seconds)

    # 16 times the actions; with the square of them it would be 256 times the time
    assert best(64, 256, 3) < 4 * 16 * best(16, 64, 10)


def test_the_peak_counts_from_the_start_of_f_to_the_end_of_b_or_w() -> None:
    (actions,) = parse("0F0 0F1 0B0 0I1 0F2 0W1")
    at = [(0, 1), (5, 6), (1, 5), (6, 7), (7, 8), (8, 9)]
    events = tuple(Event(1, a, *span) for a, span in zip(actions, at, strict=True))
    # 0F1 starts as 0B0 ends: 1 held. 0I1 gives nothing back: 0F2 makes 2. A copy counts nothing
    assert Timeline((*events[:4], Event(0, "copy", 0, 1)), 3).peak_activations == [0, 1, 0]
    assert Timeline(events, 3).peak_activations == [0, 2, 0]


NAMES = ["forward", "backward", "transfer", "input_backward", "weight_backward"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("error", "bad"),
    [
        *((ValueError, bad) for bad in (-1, [1, -0.5], float("nan"), float("inf"))),
        *((TypeError, bad) for bad in (True, "1", [1, None], {1: 2}, 1j)),
    ],
)
def test_costs_that_are_no_numbers_from_0_are_refused_by_name(name, error, bad) -> None:
    value = bad[-1] if isinstance(bad, list) else bad
    message = re.escape(f"got {value!r}")
    with pytest.raises(error, match=f"{name} is a number of 0 or more, .* {message}"):
        Costs(**{"forward": 1, "backward": 1, name: bad})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_list_of_the_wrong_length_is_refused_by_name(name: str, length: int) -> None:
    costs = Costs(**{**dict.fromkeys(NAMES, 1), name: [1] * length})
    kind = "h1" if "_" in name else None
    schedule = zero_bubble_schedule(2, 2, kind) if kind else gpipe_schedule(2, 2)
    with pytest.raises(ValueError, match=f"{name} has {length} numbers, the schedule has 2 stages"):
        simulate(schedule, costs)


@pytest.mark.parametrize("name", ["input_backward", "weight_backward"])
def test_split_backwards_without_their_times_say_what_to_give(name: str) -> None:
    given = {"input_backward": 1, "weight_backward": 1}
    del given[name]
    with pytest.raises(ValueError, match=f"splits its backwards, so Costs needs {name}"):
        simulate(zero_bubble_schedule(2, 2, "h1"), Costs(1, 2, **given))
    assert simulate(gpipe_schedule(2, 2), Costs(1, 2, **given)).makespan == 9


def test_the_costs_of_a_simulated_run_are_those_that_it_was_simulated_with() -> None:
    costs = Costs([1, 2], [3, 4], 0.0, [5, 6], [7, 8])
    for schedule in (gpipe_schedule(2, 3), zero_bubble_schedule(2, 3, "h1")):
        found = costs_from(simulate(schedule, costs))
        assert simulate(schedule, found) == simulate(schedule, costs)
    assert found == Costs([1, 2], [], 0.0, [5, 6], [7, 8])


def test_a_cost_is_the_middle_duration_of_a_stage_s_actions() -> None:
    lengths = (1, 2, 60)
    events = [
        Event(0, action, 100 * n, 100 * n + length)
        for n, (action, length) in enumerate(zip(parse("0F0 0F1 0F2")[0], lengths, strict=True))
    ]
    assert costs_from(Timeline(tuple(events), 1)).forward == [2]


def test_a_stage_without_an_event_of_a_kind_is_named() -> None:
    run = simulate(parse("0F0 0B0"), Costs(1, 1))
    later = Event(0, parse("1F0")[0][0], 5, 6)
    with pytest.raises(ValueError, match="the timeline has no B of stage 1"):
        costs_from(Timeline((*run.events, later), 1))


@pytest.mark.parametrize(
    ("schedule", "transfers"),
    [
        (naive_schedule(1, 5), 0),
        (gpipe_schedule(4, 8), 2 * 8 * 3),
        (one_f_one_b_schedule(4, 8), 2 * 8 * 3),
        (interleaved_schedule(4, 8, 2), 2 * 8 * 7),
        (zero_bubble_schedule(4, 8, "h2"), 2 * 8 * 3),
        (zero_bubble_schedule(4, 8, "v"), 2 * 8 * 6),  # the point of the V lies on one device
    ],
)
def test_transfers_are_counted_there_and_back(schedule: Schedule, transfers: int) -> None:
    assert count_transfers(schedule) == transfers


@given(legal_schedules())
@settings(deadline=None, max_examples=60, derandomize=True)
def test_the_most_that_is_held_is_the_peak_and_nothing_is_left(case: tuple) -> None:
    timeline = simulate(case[0], ONE_EACH)
    for steps, peak in zip(timeline.activations_in_flight, timeline.peak_activations, strict=True):
        assert [when for when, _ in steps] == sorted(when for when, _ in steps)
        assert steps[0] == (0.0, 0)
        assert max(number for _, number in steps) == peak
        assert steps[-1][1] == 0


def test_microbatches_of_different_sizes_have_costs_of_their_own() -> None:
    large, small = Costs(2, 4, transfer=1), Costs([1, 3], 2)
    assert spans(simulate(gpipe_schedule(2, 2), [large, small])) == (
        "0F0@0-2 0F1@2-3 1F0@3-5 1F1@5-8 1B0@8-12 1B1@12-14 0B0@13-17 0B1@17-19"
    )
    assert spans(simulate(gpipe_schedule(2, 2), [small, large])) == (
        "0F0@0-1 0F1@1-3 1F0@1-4 1F1@4-6 1B0@6-8 0B0@8-10 1B1@8-12 0B1@13-17"
    )


@given(legal_schedules())
@settings(deadline=None, max_examples=40, derandomize=True)
def test_the_same_costs_for_each_microbatch_change_nothing(case: tuple) -> None:
    schedule = case[0]
    count = 1 + max(action.microbatch_index for actions in schedule for action in actions)
    assert simulate(schedule, [ONE_EACH] * count) == simulate(schedule, ONE_EACH)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_list_of_costs_has_one_for_each_microbatch(count: int) -> None:
    message = f"costs has {count} entries, the schedule has 3 micro-batches"
    with pytest.raises(ValueError, match=message):
        simulate(gpipe_schedule(2, 3), [Costs(1, 2)] * count)
