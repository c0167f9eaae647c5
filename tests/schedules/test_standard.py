import inspect
from collections.abc import Callable
from functools import partial
from textwrap import dedent
from unittest import mock

import pytest
from hypothesis import given, settings
from schedule_cases import drawing, is_legal, legal_schedules, orders

from mpcourse.schedules import zero_bubble
from mpcourse.schedules.actions import Schedule
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import (
    gpipe_schedule,
    interleaved_schedule,
    naive_schedule,
    one_f_one_b_schedule,
)
from mpcourse.schedules.validate import validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule

# What torch (below) does not have or refuses: one at a time, fewer micro-batches than stages
TABLES = [
    (
        naive_schedule(2, 2),
        """
        0F0 0B0 0F1 0B1
        1F0 1B0 1F1 1B1
        """,
    ),
    (
        gpipe_schedule(3, 2),
        """
        0F0 0F1 0B0 0B1
        1F0 1F1 1B0 1B1
        2F0 2F1 2B0 2B1
        """,
    ),
    (
        one_f_one_b_schedule(4, 2),
        """
        0F0 0F1 0B0 0B1
        1F0 1F1 1B0 1B1
        2F0 2F1 2B0 2B1
        3F0 3B0 3F1 3B1
        """,
    ),
]


@pytest.mark.parametrize(("schedule", "table"), TABLES)
def test_small_schedules_are_these_tables(schedule: Schedule, table: str) -> None:
    assert orders(schedule) == dedent(table).strip()


@pytest.mark.parametrize(
    ("function", "schedule"),
    [
        (naive_schedule, naive_schedule(2, 2)),
        (gpipe_schedule, gpipe_schedule(3, 3)),
        (one_f_one_b_schedule, one_f_one_b_schedule(3, 4)),
        (interleaved_schedule, interleaved_schedule(2, 4, 2)),
        (zero_bubble._h_schedule, zero_bubble_schedule(3, 5, "h1")),
        (zero_bubble._h_schedule, zero_bubble_schedule(3, 5, "h2")),
        (zero_bubble._v_schedule, zero_bubble_schedule(2, 3, "v")),
    ],
)
def test_the_picture_in_each_function_is_what_it_returns(
    function: Callable, schedule: Schedule
) -> None:
    source = inspect.getsource(function)
    for line in drawing(schedule):
        assert f"    # {line}\n" in source


@given(legal_schedules())
@settings(deadline=None, max_examples=150)
def test_every_schedule_of_every_size_is_legal(case: tuple[Schedule, int, int]) -> None:
    validate_schedule(*case)
    if len(case[0]) <= 4:  # for the slow checker, too
        assert is_legal(*case)


def test_interleaved_with_m_a_multiple_of_p_has_the_bubble_of_the_paper() -> None:
    # (p - 1) / v of what 1F1B has (p - 1) of; a stage takes 1/v of the time
    for devices, rounds, chunks in [(2, 2, 2), (4, 2, 2), (4, 3, 3), (8, 2, 4), (3, 1, 2)]:
        timeline = simulate(
            interleaved_schedule(devices, devices * rounds, chunks), Costs(1 / chunks, 2 / chunks)
        )
        expected = 3 * (devices * rounds + (devices - 1) / chunks)
        assert timeline.makespan == pytest.approx(expected)


LETTERS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def torch_orders(name: str, *sizes: int) -> str:
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    lines = []
    for row in visualizer.get_schedule_ops(name, *sizes):
        steps = [a for a in row if a is not None and a.computation_type.name in LETTERS]
        words = [
            f"{a.stage_index}{LETTERS[a.computation_type.name]}{a.microbatch_index}" for a in steps
        ]
        lines.append(" ".join(words))
    return "\n".join(lines)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5])
def test_gpipe_is_in_torchs_order(devices: int) -> None:
    for microbatches in (devices, devices + 1, 8):  # torch 2.9 refuses fewer than stages
        ours = orders(gpipe_schedule(devices, microbatches))
        assert ours == torch_orders("GPipe", devices, microbatches)


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved_is_in_torchs_order_and_refuses_what_torch_refuses(
    devices: int, chunks: int
) -> None:
    for microbatches in range(1, 3 * devices + 2):
        try:
            theirs = torch_orders("Interleaved1F1B", devices, microbatches, chunks)
        except ValueError:
            with pytest.raises(ValueError, match="rounds"):
                interleaved_schedule(devices, microbatches, chunks)
        else:
            assert orders(interleaved_schedule(devices, microbatches, chunks)) == theirs


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5])
def test_zb_v_is_in_torchs_order(devices: int) -> None:
    for microbatches in (1, 2, 2 * devices - 1, 2 * devices + 3):
        ours = orders(zero_bubble_schedule(devices, microbatches, "v"))
        assert ours == torch_orders("ZBVZeroBubble", devices, microbatches)


def torch_1f1b_order(num_stages: int, num_microbatches: int, rank: int) -> str:
    """What Schedule1F1B really calls on a stage; the order that its visualizer gives is wrong."""
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    calls: list[str] = []
    stage = mock.MagicMock(num_stages=num_stages, stage_index=rank, group_rank=rank)
    stage.group_size, stage.submod, stage.is_first, stage.is_last = num_stages, None, False, False
    for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, name).return_value = []
    stage.forward_one_chunk = lambda mb, *_, **__: calls.append(f"{rank}F{mb}")
    stage.backward_one_chunk = lambda mb, *_, **__: calls.append(f"{rank}B{mb}")
    schedule = pipelining.Schedule1F1B(stage, num_microbatches)
    schedule._initialize_stage = lambda *_, **__: None
    schedule._check_inputs = lambda *_: ([()] * num_microbatches, [{}] * num_microbatches)
    schedule._step_microbatches()
    return " ".join(calls)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_1f1b_does_what_torchs_1f1b_does(stages: int) -> None:
    for microbatches in (stages, stages + 1, 2 * stages + 3):  # torch refuses fewer than stages
        ours = orders(one_f_one_b_schedule(stages, microbatches)).splitlines()
        assert ours == [torch_1f1b_order(stages, microbatches, rank) for rank in range(stages)]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (naive_schedule, ("num_stages", "num_microbatches")),
        (gpipe_schedule, ("num_stages", "num_microbatches")),
        (one_f_one_b_schedule, ("num_stages", "num_microbatches")),
        (interleaved_schedule, ("num_devices", "num_microbatches", "stages_per_device")),
        (partial(zero_bubble_schedule, variant="h1"), ("num_devices", "num_microbatches")),
    ],
)
@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "2", None])
def test_sizes_that_are_no_whole_number_from_one_are_refused_by_name(
    function: Callable, names: tuple[str, ...], bad: object
) -> None:
    for name in names:
        arguments = {**dict.fromkeys(names, 2), name: bad}
        error = ValueError if bad in (0, -1) and not isinstance(bad, bool) else TypeError
        with pytest.raises(error, match=f"{name} is a whole number from 1; got {bad!r}"):
            function(**arguments)


def test_interleaved_says_which_counts_it_takes() -> None:
    with pytest.raises(ValueError, match=r"=9 .* 2 rounds .* take 8 or 10, or any multiple of 4"):
        interleaved_schedule(4, 9, 2)
    interleaved_schedule(4, 8, 2)
    interleaved_schedule(4, 10, 2)
