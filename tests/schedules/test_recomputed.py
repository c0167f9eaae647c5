"""Stages that recompute: a backward is longer by the forward, and the inputs alone are held."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import ONE_EACH, legal_schedules, parse, spans

from mpcourse.schedules.simulation import Costs, costs_from, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule
from mpcourse.schedules.timeline import Timeline


def test_one_stage_of_two_recomputes() -> None:
    timeline = simulate(gpipe_schedule(2, 2), Costs(1, 2, recompute=[True, False]))
    assert spans(timeline) == "0F0@0-1 0F1@1-2 1F0@1-2 1F1@2-3 1B0@3-5 0B0@5-8 1B1@5-7 0B1@8-11"
    assert timeline.activations_in_flight == [
        [(0, 0), (5, 1), (8, 0), (8, 1), (11, 0)],
        [(0, 0), (1, 1), (2, 2), (5, 1), (7, 0)],
    ]
    assert timeline.inputs_in_flight == [[(0, 0), (0, 1), (1, 2), (8, 1), (11, 0)], [(0, 0)]]
    assert (timeline.peak_activations, timeline.peak_inputs) == ([1, 2], [2, 0])


def test_a_split_backward_recomputes_once_with_its_first_half() -> None:
    timeline = simulate(parse("0F0 0F1 0I0 0I1 0W0 0W1"), Costs(1, 99, 0, 2, 4, recompute=True))
    assert spans(timeline) == "0F0@0-1 0F1@1-2 0I0@2-5 0I1@5-8 0W0@8-12 0W1@12-16"
    assert timeline.activations_in_flight == [[(0, 0), (2, 1), (5, 2), (12, 1), (16, 0)]]
    assert timeline.peak_inputs == [2]


def test_what_gpipe_holds_and_takes_when_it_recomputes_as_its_paper_does() -> None:
    """All m inputs and one micro-batch's activations, for a third more time (4 for 3)."""
    for p, m in product(range(1, 6), range(1, 9)):
        timeline = simulate(gpipe_schedule(p, m), Costs(1, 2, recompute=True))
        assert timeline.makespan == 4 * (m + p - 1)
        assert (timeline.peak_activations, timeline.peak_inputs) == ([1] * p, [m] * p)
        plain = simulate(one_f_one_b_schedule(p, m), Costs(1, 2, recompute=True))
        assert plain.peak_inputs == [min(m, p - rank) for rank in range(p)]


@given(legal_schedules(), st.data())
@settings(deadline=None, max_examples=60, derandomize=True)
def test_it_is_the_timeline_of_longer_backwards(case: tuple, data: st.DataObject) -> None:
    schedule, num_stages, _ = case
    flags = data.draw(st.lists(st.booleans(), min_size=num_stages, max_size=num_stages))
    timeline = simulate(schedule, Costs(3, 5, 1, 2, 2, recompute=flags))
    longer = [3 * flag for flag in flags]
    backward, halves = [5 + more for more in longer], [2 + more for more in longer]
    assert timeline.events == simulate(schedule, Costs(3, backward, 1, halves, 2)).events
    plain = simulate(schedule, Costs(3, 5, 1, 2, 2))
    found = zip(timeline.peak_activations, timeline.peak_inputs, strict=True)
    for (held, inputs), most in zip(found, plain.peak_activations, strict=True):
        assert max(held, inputs) <= most <= held + inputs
    for steps in (*timeline.activations_in_flight, *timeline.inputs_in_flight):
        assert steps[-1][1] == 0
    found = costs_from(timeline)
    assert found.recompute == (flags if any(flags) else False)
    assert found.forward == [3] * num_stages
    assert found.backward == [5] * num_stages or found.input_backward == [2] * num_stages


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (1, TypeError, "recompute is True or False"),
        ("yes", TypeError, "recompute is True or False"),
        (None, TypeError, "got None"),
        ([True, 0], TypeError, r"got \[True, 0\]"),
        ([True], ValueError, "recompute has 1 flags, there are 2 stages"),
    ],
)
def test_bad_flags_are_refused(value: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        simulate(gpipe_schedule(2, 2), Costs(1, 2, recompute=value))


def test_a_stage_recomputes_all_micro_batches_or_none() -> None:
    with pytest.raises(ValueError, match="costs differ in recompute"):
        simulate(gpipe_schedule(2, 2), [Costs(1, 2), Costs(1, 2, recompute=True)])
    assert simulate([[], []], ONE_EACH) == Timeline((), 2)
