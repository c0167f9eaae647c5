"""Jobs of a known length do the same work on each device."""

import pytest
import torch

from mpcourse.devices.devices import get_devices
from mpcourse.devices.jobs import SIZE, matrix_jobs
from mpcourse.devices.timing import measure


def test_jobs_of_two_devices_compute_the_same():
    devices = get_devices(2)
    first, second = matrix_jobs(devices, seconds=0.01)
    expected = torch.full((SIZE, SIZE), 1 / SIZE)
    for device, job in zip(devices, (first, second), strict=True):
        result = device.run(job)
        assert result.device == device.device
        torch.testing.assert_close(result.cpu(), expected)


def test_a_job_of_ten_times_the_length_takes_longer():
    device = get_devices(1)[0]
    (short,) = matrix_jobs([device], seconds=0.01)
    (long,) = matrix_jobs([device], seconds=0.1)
    times = [measure(lambda job=job: device.run(job), [device]).median_s for job in (short, long)]
    assert times[1] > 3 * times[0]


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_length_of_nothing_is_refused(seconds):
    with pytest.raises(ValueError, match=f"more than 0 seconds; got {seconds}"):
        matrix_jobs(get_devices(1), seconds=seconds)
