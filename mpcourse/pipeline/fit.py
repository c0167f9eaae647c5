"""Do stages, devices and schedule fit together? (page `pipeline`)."""

from torch import Tensor, nn

from mpcourse.devices.devices import Device
from mpcourse.schedules.actions import Schedule
from mpcourse.schedules.named import make_schedule
from mpcourse.schedules.validate import check_actions


def check_stages(stages: list[nn.Module]) -> None:
    """Refuse what is no list of modules with parameters and buffers of their own.

    Raises:
        ValueError: There is no stage, or two share a tensor.
        TypeError: A stage is no module.
    """
    if not stages:
        raise ValueError("stages is empty; a pipeline needs at least one")
    owner: dict[Tensor, int] = {}
    for index, stage in enumerate(stages):
        if not isinstance(stage, nn.Module):
            raise TypeError(f"stage {index} is a {type(stage).__name__}, not an nn.Module")
        for name, tensor in [*stage.named_parameters(), *stage.named_buffers()]:
            if owner.setdefault(tensor, index) != index:
                raise ValueError(
                    f"stages {owner[tensor]} and {index} share the tensor {name}; two devices "
                    "cannot both update it: put its users into one stage"
                )


def schedule_for(
    schedule: str | Schedule, num_stages: int, num_devices: int, num_microbatches: int
) -> Schedule:
    """The schedule of that name, or the given one as it is."""
    if not isinstance(schedule, str):
        return schedule
    return make_schedule(schedule, num_stages, num_devices, num_microbatches)


def find_homes(schedule: Schedule, devices: list[Device], num_stages: int) -> list[Device]:
    """The device of each stage.

    Raises:
        ValueError: The schedule is none (`ScheduleError`), or for other devices or stages, or a
            device is named twice.
    """
    check_actions(schedule)
    twice = next((device for device in devices if devices.count(device) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice; each row of the schedule needs its own device")
    if len(schedule) != len(devices):
        raise ValueError(f"the schedule is for {len(schedule)} devices; got {len(devices)}")
    rows = zip(devices, schedule, strict=True)
    home = {action.stage_index: device for device, row in rows for action in row}
    if set(home) != set(range(num_stages)):
        raise ValueError(f"the schedule has the stages {sorted(home)}; got {num_stages} modules")
    return [home[index] for index in range(num_stages)]
