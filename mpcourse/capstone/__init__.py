"""Plans for a pruned pipeline: forecast by counting and by the clock, then run.

Page `capstone`.
"""

from mpcourse.capstone.copies import Copies, count_copies
from mpcourse.capstone.plans import (
    Forecast,
    Plan,
    block_work,
    bytes_per_sample,
    counted_costs,
    fresh_bytes,
    gradient_bytes,
    prunable_blocks,
    pruned,
    saved_bytes,
    simulate_plan,
    state_bytes,
)
from mpcourse.capstone.trials import (
    Digits,
    Task,
    measure_plans,
    pipeline_of,
    run_plan,
    train_pipeline,
    uncut,
)
