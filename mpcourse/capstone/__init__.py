"""Plans for a pruned pipeline: forecast by counting and by the clock, then run.

Page `capstone`.
"""

from mpcourse.capstone.plans import (
    Forecast,
    Plan,
    block_work,
    counted_costs,
    prunable_blocks,
    pruned,
    simulate_plan,
)
from mpcourse.capstone.trials import (
    Task,
    measure_plans,
    pipeline_of,
    run_plan,
    train_pipeline,
    uncut,
)

__all__ = [
    "Forecast",
    "Plan",
    "Task",
    "block_work",
    "counted_costs",
    "measure_plans",
    "pipeline_of",
    "prunable_blocks",
    "pruned",
    "run_plan",
    "simulate_plan",
    "train_pipeline",
    "uncut",
]
