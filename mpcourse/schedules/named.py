"""Schedules by name, for as many stages, devices and micro-batches as there are.

Page `schedules`.
"""

from mpcourse.schedules.actions import Schedule
from mpcourse.schedules.standard import (
    gpipe_schedule,
    interleaved_schedule,
    naive_schedule,
    one_f_one_b_schedule,
    zero_bubble_schedule,
)

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")


def make_schedule(name: str, num_stages: int, num_devices: int, num_microbatches: int) -> Schedule:
    """The schedule of that name.

    Args:
        name: One of `SCHEDULES`.
        num_stages: As many as devices; a multiple of that for "interleaved", twice for "zb-v".
        num_devices: Devices, 1 or more.
        num_microbatches: Micro-batches, 1 or more.

    Raises:
        ValueError: The name is unknown, or the stages do not fit the devices.
    """
    _check_name(name)
    per_device, rest = divmod(num_stages, num_devices)
    if name == "interleaved":
        fits, wanted = per_device > 0 and rest == 0, f"a multiple of {num_devices}"
    else:
        count = 2 * num_devices if name == "zb-v" else num_devices
        fits, wanted = num_stages == count, str(count)
    if not fits:
        raise ValueError(f"{name} on {num_devices} devices needs {wanted} stages; got {num_stages}")
    if name == "interleaved":
        return interleaved_schedule(num_devices, num_microbatches, per_device)
    if name.startswith("zb-"):
        return zero_bubble_schedule(num_devices, num_microbatches, name.removeprefix("zb-"))
    plain = {"naive": naive_schedule, "gpipe": gpipe_schedule, "1f1b": one_f_one_b_schedule}
    return plain[name](num_devices, num_microbatches)


def num_devices_for(schedule: str | Schedule, num_stages: int) -> int:
    """How many devices a schedule uses: one per stage, or per two in "zb-v" and "interleaved".

    Raises:
        ValueError: The name is unknown, or the number of stages is odd where two share a device.
    """
    if not isinstance(schedule, str):
        return len(schedule)
    _check_name(schedule)
    if schedule not in ("zb-v", "interleaved"):
        return num_stages
    if num_stages % 2:
        raise ValueError(f"{schedule} needs an even number of stages; got {num_stages}")
    return num_stages // 2


def _check_name(name: str) -> None:
    if name not in SCHEDULES:
        raise ValueError(f"schedule is one of {', '.join(SCHEDULES)} or a Schedule; got {name!r}")
