"""Every name makes a legal schedule, and says what does not fit."""

import pytest

from mpcourse.schedules.named import SCHEDULES, make_schedule, num_devices_for
from mpcourse.schedules.validate import validate_schedule


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("numbers", "words"),
    [((2, 0, 2), "num_devices"), ((0, 1, 2), "num_stages"), ((2, -1, 2), "num_devices")],
)
def test_numbers_below_1_are_refused_by_name(name, numbers, words):
    with pytest.raises(ValueError, match=f"{words} is a whole number from 1"):
        make_schedule(name, *numbers)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_every_name_makes_a_legal_schedule_for_its_number_of_devices(name, devices):
    stages = devices * (2 if name in ("interleaved", "zb-v") else 1)
    assert num_devices_for(name, stages) == devices
    validate_schedule(make_schedule(name, stages, devices, 2 * devices), stages, 2 * devices)
