"""Devices and the threads that own them, and clocks that tell the truth (page `start_here`).

`devices` finds GPUs, shares of a GPU, or CPU cores; `workers` and `results` run what a device is
handed, `lanes` get it there (streams on CUDA, thread counts on a CPU), `modes` go along,
`crossings` bring values from one to another; `timing` and `clocks` measure; `recordings` keep what
was measured elsewhere.
"""

from mpcourse.devices.clocks import clock_for
from mpcourse.devices.devices import (
    Device,
    DeviceLike,
    as_devices,
    available_cores,
    describe_devices,
    get_devices,
    synchronize,
)
from mpcourse.devices.jobs import matrix_jobs, python_job
from mpcourse.devices.modes import capture_modes, modes_set
from mpcourse.devices.recordings import (
    DATA_FOLDER,
    Recording,
    read_recording,
    values_by,
    write_recording,
)
from mpcourse.devices.results import Result, collect
from mpcourse.devices.timing import (
    Timing,
    describe_machine,
    measure,
    measure_over,
    measure_overlap,
    measure_timeline,
    measure_together,
)
from mpcourse.schedules.timeline import Event, Timeline
