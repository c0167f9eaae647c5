"""Schedules by name, for as many stages, devices and micro-batches as there are.

Page `schedules`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from mpcourse.schedules.actions import Schedule, check_count
from mpcourse.schedules.standard import (
    gpipe_schedule,
    interleaved_schedule,
    naive_schedule,
    one_f_one_b_schedule,
)
from mpcourse.schedules.zero_bubble import zero_bubble_schedule


class Named(NamedTuple):
    """How a schedule of some name is made."""

    # from the numbers of devices and micro-batches; "interleaved" also takes the stages of a device
    make: Callable[..., Schedule]
    stages_per_device: int = 1  # in "interleaved" any number; here the one that pages show


NAMED = {
    "naive": Named(naive_schedule),
    "gpipe": Named(gpipe_schedule),
    "1f1b": Named(one_f_one_b_schedule),
    "interleaved": Named(interleaved_schedule, 2),
    "zb-h1": Named(partial(zero_bubble_schedule, variant="h1")),
    "zb-h2": Named(partial(zero_bubble_schedule, variant="h2")),
    "zb-v": Named(partial(zero_bubble_schedule, variant="v"), 2),
}
SCHEDULES = tuple(NAMED)


def make_schedule(name: str, num_stages: int, num_devices: int, num_microbatches: int) -> Schedule:
    """The schedule of that name, one of `SCHEDULES`.

    There are as many stages as devices; a multiple of that for "interleaved", twice for "zb-v".
    """
    _check_name(name)
    check_count("num_stages", num_stages)
    check_count("num_devices", num_devices)
    named = NAMED[name]
    if name == "interleaved":
        fits, wanted = num_stages % num_devices == 0, f"a multiple of {num_devices}"
    else:
        count = named.stages_per_device * num_devices
        fits, wanted = num_stages == count, str(count)
    if not fits:
        raise ValueError(f"{name} on {num_devices} devices needs {wanted} stages; got {num_stages}")
    if name == "interleaved":
        return named.make(num_devices, num_microbatches, num_stages // num_devices)
    return named.make(num_devices, num_microbatches)


def num_devices_for(schedule: str | Schedule, num_stages: int) -> int:
    """How many devices a schedule uses: one per stage, or per two in "zb-v" and "interleaved"."""
    if not isinstance(schedule, str):
        return len(schedule)
    _check_name(schedule)
    check_count("num_stages", num_stages)
    devices, rest = divmod(num_stages, NAMED[schedule].stages_per_device)
    if rest:
        raise ValueError(f"{schedule} needs an even number of stages; got {num_stages}")
    return devices


def _check_name(name: str) -> None:
    if name not in SCHEDULES:
        raise ValueError(f"schedule is one of {', '.join(SCHEDULES)} or a Schedule; got {name!r}")
