"""Devices and the threads that own them, and clocks that tell the truth (page `start_here`).

`devices` finds GPUs, shares of a GPU, or CPU cores; `workers` run what a device is handed;
`streams` get it there and from one device to another (on a CPU: thread counts); `timing` measures;
`recordings` keep what was measured elsewhere; `jobs` are work of a known length; `locks` do not
outlive a fork.
"""

from mpcourse.devices.devices import (
    Device,
    DeviceLike,
    as_devices,
    available_cores,
    describe_devices,
    get_devices,
    synchronize,
)
from mpcourse.devices.jobs import matrix_jobs
from mpcourse.devices.recordings import (
    gpu_seconds,
    read_recording,
    values_by,
    write_recording,
)
from mpcourse.devices.timing import (
    Timing,
    clock_for,
    describe_machine,
    limited,
    measure,
    measure_awake,
    measure_overlap,
    measure_timeline,
    measure_together,
    median_interval,
)
from mpcourse.devices.workers import Result, Worker, collect
from mpcourse.schedules.timeline import Event, Timeline
