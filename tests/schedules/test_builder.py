"""The builder lets through what can run, refuses the rest with its reason, and loses nothing."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import legal_schedules, orders

from mpcourse.schedules.actions import Action, ScheduleError
from mpcourse.schedules.builder import UNITS, Builder, read_action
from mpcourse.schedules.order import execution_order
from mpcourse.schedules.simulation import simulate
from mpcourse.schedules.standard import naive_schedule, one_f_one_b_schedule
from mpcourse.schedules.validate import validate_schedule


@pytest.mark.parametrize(
    ("stands", "move", "reason"),
    [
        ("", "1F0", "device 1: 1F0 needs 0F0, which has not been done"),
        ("0F0 1F0", "0B0", "device 0: 0B0 needs 1B0, which has not been done"),
        ("0F0", "1B0", "device 1: 1B0 needs 1F0, which has not been done"),
        ("0F0 1F0 1B0", "0I0", None),
        ("0F0 1F0", "0I0", "device 0: 0I0 needs 1I0, which has not been done"),
        ("0F0 1F0", "1W0", "device 1: 1W0 needs 1I0, which has not been done"),
        ("0F0 1F0 1I0", "1W0", None),
        ("0F0 1F0 1I0", "0B0", None),
        ("0F0 1F0 1I0", "1B0", "device 1: 1B0 and 1I0: a backward is either whole (B) or split"),
        ("0F0", "0F0", "device 0: 0F0 stands twice"),
        ("0F0 0F1", "0F2", "device 0: 0F2 makes it hold 3 activations; max_activations is 2"),
        ("0F0 0F1 1F0 1I0 0I0", "0F2", "device 0: 0F2 makes it hold 3"),  # I gives nothing back
        ("0F0 0F1 1F0 1I0 0I0 0W0", "0F2", None),
        ("", "2F0", "2F0 has no device: the stages are 0 to 1"),
        ("", "0F3", "device 0: 0F3 has microbatch_index 3, which is not in 0 to 2"),
        ("", "F0", "'F0' is no action; one is written as stage, kind, micro-batch: 0F1"),
        ("", "0f0", "'0f0' is no action"),
        ("", "0F-1", "'0F-1' is no action"),
    ],
)
def test_a_move_is_refused_with_its_reason_and_nothing_is_lost(
    stands: str, move: str, reason: str | None
) -> None:
    builder = Builder(2, 3, max_activations=2).add(stands)
    before = list(builder.moves)
    found = builder.why_not(move)
    assert builder.moves == before
    if reason is None:
        assert found is None
        assert len(builder.add(move).moves) == len(before) + 1
        return
    assert found is not None
    assert found.startswith(reason)
    with pytest.raises(ScheduleError, match=re.escape(reason)):
        builder.add(move)
    assert builder.moves == before


def test_of_several_moves_all_are_made_or_none() -> None:
    builder = Builder(2, 2).add("0F0")
    with pytest.raises(ScheduleError, match="device 1: 1B1 needs 1F1"):
        builder.add("1F0 0F1 1B1 1B0")
    assert orders(builder.schedule) == "0F0\n"
    with pytest.raises(ScheduleError, match="no action"):
        builder.add("1F0 what")
    assert len(builder.moves) == 1


def test_undo_takes_back_one_move_and_then_nothing() -> None:
    builder = Builder(2, 1).add("0F0 1F0")
    builder.undo()
    assert orders(builder.schedule) == "0F0\n"
    builder.undo()
    builder.undo()
    assert builder.schedule == [[], []]
    assert builder.timeline.makespan == 0


def test_the_next_action_of_a_kind_is_counted_per_stage_and_kind() -> None:
    builder = Builder(2, 3).add("0F0 0F1 1F0 1B0")
    assert [str(builder.next_of(0, kind)) for kind in "FB"] == ["0F2", "0B0"]
    assert [str(builder.next_of(1, kind)) for kind in "FB"] == ["1F1", "1B1"]


def test_it_is_complete_when_the_last_backward_stands() -> None:
    builder = Builder(1, 2).add("0F0 0B0 0F1 0I1")
    assert not builder.is_complete
    assert builder.add("0W1").is_complete
    validate_schedule(builder.schedule, 1, 2)


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0), (1, 1, 0), (True, 1)])
def test_wrong_sizes_are_refused(arguments: tuple) -> None:
    with pytest.raises((TypeError, ValueError), match="is a whole number from 1"):
        Builder(*arguments)


def test_an_action_is_read_as_it_is_written() -> None:
    for action in (Action(0, "F", 0), Action(12, "W", 34), Action(3, "I", 1), Action(1, "B", 2)):
        assert read_action(str(action)) == action


@given(legal_schedules(most=4))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_every_legal_schedule_with_a_stage_a_device_can_be_built(case: tuple) -> None:
    schedule, num_stages, num_microbatches = case
    builder = Builder(num_stages, num_microbatches)
    builder.add(" ".join(str(action) for _, action in execution_order(schedule)))
    assert builder.is_complete
    assert len(builder.moves) == sum(map(len, schedule))
    assert builder.timeline == simulate(builder.schedule, UNITS)
    if len(schedule) == num_stages:
        assert builder.schedule == schedule


@given(st.data())
@settings(deadline=None, max_examples=60, derandomize=True)
def test_whatever_has_been_built_can_go_on_to_a_legal_schedule_under_the_cap(
    data: st.DataObject,
) -> None:
    num_stages, num_microbatches = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    cap = data.draw(st.integers(1, 3))
    builder = Builder(num_stages, num_microbatches, cap)
    while not builder.is_complete:
        options = [(stage, kind) for stage in range(num_stages) for kind in "FB"]
        moves = [str(builder.next_of(*option)) for option in options]
        legal = [move for move in moves if builder.why_not(move) is None]
        assert legal, "no legal move is left"
        builder.add(data.draw(st.sampled_from(legal)))
        assert builder.timeline.num_devices == num_stages  # it can be simulated at every point
    validate_schedule(builder.schedule, num_stages, num_microbatches, cap)
    fastest = simulate(one_f_one_b_schedule(num_stages, num_microbatches), UNITS)
    slowest = simulate(naive_schedule(num_stages, num_microbatches), UNITS)
    assert fastest.makespan <= builder.timeline.makespan <= slowest.makespan
