"""A schedule is data: who does what, in which order (pages `schedules` and `zero_bubble`).

From here on up everything speaks of `Action`s in a `Schedule`: `standard` and `zero_bubble` make
schedules, `validate` says whether one is legal, `simulation` makes a `Timeline` of it. Standard
library only: this folder can be read and run by a bare Python.
"""

from mpcourse.schedules.actions import (
    KINDS,
    Action,
    Schedule,
    ScheduleError,
    check_count,
    makes,
    needs,
    number_actions,
)
from mpcourse.schedules.named import SCHEDULES, make_schedule, num_devices_for
from mpcourse.schedules.simulation import Costs, costs_from, count_transfers, simulate
from mpcourse.schedules.standard import (
    gpipe_schedule,
    interleaved_schedule,
    naive_schedule,
    one_f_one_b_schedule,
)
from mpcourse.schedules.timeline import Event, Timeline
from mpcourse.schedules.validate import validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule
