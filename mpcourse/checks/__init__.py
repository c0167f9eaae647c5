"""The checks of the exercises, one module per page. `check_*` returns a `Verdict`.

Each check tries the attempt on cases that the page does not show, stops one that never returns,
and explains the wrong answers that people really give.
"""

from mpcourse.checks.page_00 import check_idle, check_speedup, check_time
from mpcourse.checks.page_01 import check_gather, check_mean, check_scatter
from mpcourse.checks.page_02 import check_crossing, check_first_device, check_parallel_apply
from mpcourse.checks.verdict import Verdict

__all__ = [
    "Verdict",
    "check_crossing",
    "check_first_device",
    "check_gather",
    "check_idle",
    "check_mean",
    "check_parallel_apply",
    "check_scatter",
    "check_speedup",
    "check_time",
]
