"""Work of a known length, to see devices at it (page `parallel_apply`)."""

from collections.abc import Callable, Sequence

import torch

from mpcourse.devices.devices import Device, DeviceLike, as_devices
from mpcourse.devices.timing import clocked

SIZE = 512  # large enough that a multiplication outweighs its call, small enough to share a GPU


def matrix_jobs(
    devices: Sequence[DeviceLike], seconds: float = 0.1
) -> list[Callable[[], torch.Tensor]]:
    """Make one job per device, all of the same work: multiplying matrices.

    Args:
        devices: Where the jobs are to run; the work is sized on the first.
        seconds: About how long one job takes when it has its device for itself, above 0.

    Returns:
        One function without arguments per device; its matrices live on that device.
    """
    if seconds <= 0:
        raise ValueError(f"a job takes more than 0 seconds; got {seconds}")
    places = as_devices(devices)
    matrices = [torch.full((SIZE, SIZE), 1 / SIZE, device=place.device) for place in places]
    count = places[0].run(_count, places[0], matrices[0], seconds)
    return [lambda matrix=matrix: _multiply(matrix, count) for matrix in matrices]


def _multiply(matrix: torch.Tensor, count: int) -> torch.Tensor:
    product = matrix
    for _ in range(count):
        product = product @ matrix  # stays the same: each entry is a mean of equal numbers
    return product


def _count(device: Device, matrix: torch.Tensor, seconds: float) -> int:
    """How many multiplications fill `seconds`: the fastest of some short trials decides."""
    _multiply(matrix, 2)
    trials = []
    for _ in range(5):
        _, start, end = clocked(lambda: _multiply(matrix, 4), [device])
        trials.append((end - start) / 4)
    return max(1, round(seconds / min(trials)))
