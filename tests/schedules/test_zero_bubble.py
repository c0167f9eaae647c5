from itertools import product
from textwrap import dedent

import pytest
from schedule_cases import ONE_EACH, orders

from mpcourse.schedules.actions import Schedule
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import one_f_one_b_schedule
from mpcourse.schedules.timeline import Timeline
from mpcourse.schedules.zero_bubble import zero_bubble_schedule

SIZES = list(product(range(1, 8), range(1, 20)))


def idle_inside(timeline: Timeline) -> list[float]:
    """Per device, the time between its first and its last action in which it does nothing."""
    idle = []
    for device in range(timeline.num_devices):
        mine = [e for e in timeline.events if e.device_index == device]
        idle.append(max(e.end for e in mine) - mine[0].start - timeline.busy(device))
    return idle


@pytest.mark.parametrize(
    ("schedule", "table"),
    [
        (zero_bubble_schedule(1, 1, "h1"), "0F0 0I0 0W0"),
        (zero_bubble_schedule(1, 3, "h2"), "0F0 0I0 0W0 0F1 0I1 0W1 0F2 0I2 0W2"),
        (
            zero_bubble_schedule(3, 1, "h1"),
            """
            0F0 0I0 0W0
            1F0 1I0 1W0
            2F0 2I0 2W0
            """,
        ),
        (
            zero_bubble_schedule(4, 2, "h1"),
            """
            0F0 0F1 0I0 0W0 0I1 0W1
            1F0 1F1 1I0 1I1 1W0 1W1
            2F0 2F1 2I0 2I1 2W0 2W1
            3F0 3I0 3F1 3I1 3W0 3W1
            """,
        ),
        (
            zero_bubble_schedule(2, 4, "h1"),
            """
            0F0 0F1 0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3
            1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3
            """,
        ),
        (
            zero_bubble_schedule(2, 4, "h2"),
            """
            0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
            1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3
            """,
        ),
    ],
)
def test_small_schedules_are_these_tables(schedule: Schedule, table: str) -> None:
    assert orders(schedule) == dedent(table).strip()


def test_the_published_times_for_4_devices_and_8_microbatches() -> None:
    assert simulate(zero_bubble_schedule(4, 8, "h1"), ONE_EACH).makespan == 27
    assert simulate(zero_bubble_schedule(4, 8, "h2"), ONE_EACH).makespan == 27
    halves = Costs(0.5, 1, 0, 0.5, 0.5)
    assert simulate(zero_bubble_schedule(4, 8, "v"), halves).makespan == 25.5


def test_h1_holds_what_1f1b_holds_at_most_and_waits_a_third_of_its_time() -> None:
    for devices, microbatches in SIZES:
        timeline = simulate(zero_bubble_schedule(devices, microbatches, "h1"), ONE_EACH)
        assert max(timeline.peak_activations) <= min(devices, microbatches)
        if microbatches >= devices:
            plain = simulate(one_f_one_b_schedule(devices, microbatches), Costs(1, 2))
            assert timeline.makespan == 3 * microbatches + devices - 1
            assert idle_inside(timeline) == [idle / 3 for idle in idle_inside(plain)]
            assert timeline.peak_activations == [devices] * devices


def test_h2_never_waits_from_2p_minus_1_microbatches_on_and_holds_as_many() -> None:
    for devices, microbatches in SIZES:
        timeline = simulate(zero_bubble_schedule(devices, microbatches, "h2"), ONE_EACH)
        assert max(timeline.peak_activations) <= min(2 * devices - 1, microbatches)
        if microbatches >= 2 * devices - 1:
            assert idle_inside(timeline) == [0] * devices
            assert timeline.peak_activations == [2 * devices - 1] * devices
        elif microbatches == 2 * devices - 2:
            assert max(idle_inside(timeline)) > 0


def test_v_never_waits_from_2p_minus_1_microbatches_on_and_holds_2p_halves() -> None:
    for devices, microbatches in SIZES:
        timeline = simulate(zero_bubble_schedule(devices, microbatches, "v"), ONE_EACH)
        assert max(timeline.peak_activations) <= 2 * devices
        if microbatches >= 2 * devices - 1:
            assert idle_inside(timeline) == [0] * devices
            assert timeline.peak_activations == [2 * devices] * devices


@pytest.mark.parametrize("variant", ["h3", "H1", "", None, 1, ["v"]])
def test_an_unknown_variant_is_refused_with_the_known_ones(variant: object) -> None:
    with pytest.raises(ValueError, match=r"variant is one of 'h1', 'h2', 'v'; got "):
        zero_bubble_schedule(2, 2, variant)  # type: ignore[arg-type]
