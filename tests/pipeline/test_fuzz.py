"""Any schedule is refused with a reason, or it runs and equals the uncut model. None hangs."""

import copy
import re

import pytest
import torch
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from schedule_cases import damage, is_legal, random_schedules
from threads import in_time
from torch import nn

from mpcourse.devices.devices import get_devices
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.actions import Schedule, ScheduleError
from mpcourse.schedules.validate import validate_schedule

WIDTH = 3
LOSS = nn.MSELoss()
NAMES_A_CULPRIT = re.compile(r"device \d|\b\d+[FBIW]\d+")
# a failure is not made smaller: where a run hangs, each further trial would take the whole limit
FUZZ = settings(deadline=None, max_examples=100, derandomize=True, phases=[Phase.generate])


def check_run(
    schedule: Schedule,
    num_stages: int,
    num_microbatches: int,
    extra: int,
    recompute: bool | list[bool] = False,
) -> None:
    """Run a schedule; compare loss and every gradient with the uncut model's."""
    stages = [nn.Linear(WIDTH, WIDTH).double() for _ in range(num_stages)]
    uncut = copy.deepcopy(nn.Sequential(*stages))
    inputs, targets = torch.randn(2, num_microbatches + extra, WIDTH, dtype=torch.double).unbind()

    def work() -> torch.Tensor:
        devices = get_devices(len(schedule))
        pipeline = Pipeline(
            stages, devices, schedule, num_microbatches=num_microbatches, recompute=recompute
        )
        return pipeline.step(inputs, targets, LOSS)

    loss = in_time(work)
    expected = LOSS(uncut(inputs), targets)
    expected.backward()
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(loss.cpu(), expected.detach(), **close)
    ours = [parameter.grad.cpu() for stage in stages for parameter in stage.parameters()]
    theirs = [parameter.grad for parameter in uncut.parameters()]
    torch.testing.assert_close(ours, theirs, **close)


@given(random_schedules(), st.integers(0, 3), st.lists(st.booleans(), min_size=6, max_size=6))
@FUZZ
def test_every_legal_order_runs_and_equals_the_uncut_model(
    case: tuple, extra: int, again: list[bool]
) -> None:
    schedule, num_stages, num_microbatches = case
    validate_schedule(schedule, num_stages, num_microbatches)
    check_run(schedule, num_stages, num_microbatches, extra, again[:num_stages])


@given(st.data())
@FUZZ
def test_a_damaged_order_is_refused_with_a_culprit_or_runs_and_equals(data: st.DataObject) -> None:
    schedule, num_stages, num_microbatches = data.draw(random_schedules())
    schedule = damage(data.draw, schedule)
    reason = why_refused(schedule, num_stages, num_microbatches)
    event("accepted" if reason is None else "refused")
    assert is_legal(schedule, num_stages, num_microbatches) == (reason is None)
    if reason is None:
        check_run(schedule, num_stages, num_microbatches, extra=1)
        return
    assert NAMES_A_CULPRIT.search(reason)
    with pytest.raises(ValueError, match=r"device \d|\d+[FBIW]\d+|the schedule has the stages"):
        check_run(schedule, num_stages, num_microbatches, extra=1)


def why_refused(schedule: Schedule, num_stages: int, num_microbatches: int) -> str | None:
    try:
        validate_schedule(schedule, num_stages, num_microbatches)
    except ScheduleError as error:
        return str(error)
    return None
