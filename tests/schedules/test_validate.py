import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import damage, is_legal, legal_schedules, parse

from mpcourse.schedules.actions import Action, Schedule, ScheduleError
from mpcourse.schedules.order import execution_order
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule
from mpcourse.schedules.validate import check_actions, validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule


def test_a_legal_schedule_returns_nothing() -> None:
    assert validate_schedule(gpipe_schedule(3, 4), 3, 4, 4) is None
    assert validate_schedule([[], *gpipe_schedule(2, 2)], 2, 2) is None  # a device may do nothing
    assert validate_schedule([tuple(row) for row in gpipe_schedule(2, 2)], 2, 2) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # two stages, two micro-batches; each has one fault
        ("0F0 0F1 0B0\n1F0 1B0 1F1 1B1", "device 0: 0B1 is missing (I and W do as well)"),
        ("0F0 0F1 0B0 0B1\n1F0 1B0 1B1", "device 1: 1F1 is missing"),
        ("0F0 0F1 0B0 0B1\n1F0 1I0 1W0 1F1 1I1", "device 1: 1W1 is missing"),
        ("0F0 0F1 0W0 0B1\n1F0 1B0 1F1 1B1", "device 0: 0I0 is missing"),
        ("0F0 0F1 0B0 0B1", "1F0 is missing: no device has stage 1"),
        ("0F0 0F1 0B0 0F1 0B1\n1F0 1B0 1F1 1B1", "device 0: 0F1 stands twice"),
        (
            "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 0B1 1B1",
            "device 1: 0B1 stands here, but stage 0 is on device 0",
        ),
        (
            "0F0 0F1 0B0 0B1\n1F0 1B0 1B1 1F1",
            "device 1: 1B1 comes before 1F1; a backward comes after its forward",
        ),
        (
            "0F0 1F0 1F1 0F1 1B1 1B0 0B0 0B1",
            "device 0: 1F1 comes before 0F1; a stage's forward comes after that of the stage "
            "before it",
        ),
        (
            "0F0 0F1 1F0 1F1 0B0 1B0 1B1 0B1",
            "device 0: 0B0 comes before 1B0; a stage's backward comes after that of the stage "
            "after it",
        ),
        (
            "0F0 0F1 1F0 1F1 0I0 1I0 1W0 0W0 1B1 0B1",
            "device 0: 0I0 comes before 1I0; a stage's backward comes after that of the stage "
            "after it",
        ),
        ("0F0 0F1 0B0 0B1\n1F0 1W0 1I0 1F1 1B1", "device 1: 1W0 comes before 1I0; W comes after I"),
        (
            "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1 1W1",
            "device 1: 1W1 and 1B1: a backward is either whole (B) or split (I, then W)",
        ),
        (
            "0F0 0F1 0B0 0B1\n1F0 1I0 1B0 1W0 1F1 1B1",
            "device 1: 1B0 and 1I0: a backward is either whole (B) or split (I, then W)",
        ),
        (
            "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1 2F0",
            "device 1: 2F0 has stage_index 2, which is not in 0 to 1",
        ),
        (
            "0F0 0F1 0B0 0B1 0F7\n1F0 1B0 1F1 1B1",
            "device 0: 0F7 has microbatch_index 7, which is not in 0 to 1",
        ),
        (
            "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1X1",
            "device 1: 1X1 has kind 'X', which is not one of F, B, I, W",
        ),
        (
            "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1",
            "deadlock: device 0 waits with 0B0 for 1B0 of device 1, "
            "device 1 waits with 1F1 for 0F1 of device 0",
        ),
        (
            "0F0 0I0 0W0 0F1 0B1\n1F0 1F1 1I0 1W0 1B1",
            "deadlock: device 0 waits with 0I0 for 1I0 of device 1, "
            "device 1 waits with 1F1 for 0F1 of device 0",
        ),
    ],
)
def test_a_fault_is_named_with_device_action_and_reason(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        validate_schedule(parse(text), 2, 2)
    assert str(caught.value) == message


def test_a_deadlock_names_the_circle_and_nobody_else() -> None:
    schedule = one_f_one_b_schedule(4, 4)
    schedule[2] = parse("2F0 2B0 2F1 2B1 2F2 2F3 2B2 2B3")[0]  # its first backward too soon
    schedule[3] = parse("3F0 3F1 3B0 3F2 3B1 3F3 3B2 3B3")[0]
    with pytest.raises(ScheduleError) as caught:
        validate_schedule(schedule, 4, 4)
    assert str(caught.value) == (
        "deadlock: device 2 waits with 2B0 for 3B0 of device 3, "
        "device 3 waits with 3F1 for 2F1 of device 2"
    )


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([], "a schedule is a list with one list per device; got []"),
        ({0: []}, "a schedule is a list with one list per device; got {0: []}"),
        (parse("0F0 0B0")[0], "device 0: expected a list of actions, got Action(stage_index=0, "),
        ([[Action(0, "F", 0), None]], "device 0: None is no Action; nothing stands for waiting"),
        (["0F0"], "device 0: expected a list of actions, got '0F0'"),
        ([["0F0"]], "device 0: '0F0' is no Action"),
        ([[Action(0, ["F"], 0)]], "has kind ['F'], which is not one of F, B, I, W"),
        ([[Action(-1, "F", 0)]], "device 0: -1F0 has stage_index -1, which is not in 0 to 0"),
        ([[Action(0, "F", False)]], "microbatch_index False, which is not in 0 to 0"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule: object, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        validate_schedule(schedule, 1, 1)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_the_cap_names_what_exceeds_it_and_a_split_backward_is_held_until_its_w() -> None:
    words = "device 0: 0F4 makes it hold 5 activations; max_activations is 4$"
    with pytest.raises(ScheduleError, match=words):
        validate_schedule(gpipe_schedule(4, 8), 4, 8, max_activations=4)
    validate_schedule(zero_bubble_schedule(4, 8, "h1"), 4, 8, max_activations=4)
    with pytest.raises(ScheduleError, match="device 0: 0F4 makes it hold 5"):
        validate_schedule(zero_bubble_schedule(4, 8, "h2"), 4, 8, max_activations=4)
    with pytest.raises(ScheduleError, match="device 0: 0F1 makes it hold 2"):
        validate_schedule(parse("0F0 0I0 0F1 0I1 0W0 0W1"), 1, 2, max_activations=1)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 2), "num_stages"), ((2, 0), "num_microbatches"), ((2, 2, 0), "max_activations")],
)
def test_wrong_sizes_are_refused_before_the_schedule_is_looked_at(
    arguments: tuple[int, ...], name: str
) -> None:
    with pytest.raises(ValueError, match=f"{name} is a whole number from 1; got 0"):
        validate_schedule(None, *arguments)  # type: ignore[arg-type]
    arguments = tuple(value or True for value in arguments)
    with pytest.raises(TypeError, match=f"{name} is a whole number from 1; got True"):
        validate_schedule(None, *arguments)  # type: ignore[arg-type]


def test_a_part_of_a_schedule_has_devices_and_an_order_too() -> None:
    forwards = parse("0F0 0F1\n1F0 1F1")
    assert check_actions(forwards)[Action(1, "F", 1)] == 1
    assert len(list(execution_order(forwards))) == 4
    with pytest.raises(ScheduleError, match="device 1: 1F0 needs 0F0, which no device does"):
        list(execution_order(parse("0F1\n1F0")))


@st.composite
def damaged_schedules(draw: st.DrawFn) -> tuple[Schedule, int, int]:
    schedule, num_stages, num_microbatches = draw(legal_schedules(most=3))
    return damage(draw, schedule), num_stages, num_microbatches


@given(damaged_schedules())
@settings(deadline=None, max_examples=400)
def test_a_damaged_schedule_is_refused_or_legal_for_the_slow_checker_too(
    case: tuple[Schedule, int, int],
) -> None:
    if is_legal(*case):
        validate_schedule(*case)
        assert len(simulate(case[0], Costs(1, 1, 0, 1, 1)).events) == sum(map(len, case[0]))
    else:
        with pytest.raises(ScheduleError, match=r"\d"):
            validate_schedule(*case)
