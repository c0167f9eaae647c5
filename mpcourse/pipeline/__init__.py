"""A schedule carried out on real tensors and devices (pages `pipeline` and `train_mnist`).

`microbatch` cuts a mini-batch and `losses` weighs its parts; a `Stage` keeps what its backward
needs, or by `replay` makes it anew; the `engine` runs the actions; `Pipeline` is all of them
together. `batch_norm` and `dropout` make a cut batch count as one; `prediction`, `sweeps` and
`trials` hold forecasts against measurements.
"""

from mpcourse.pipeline.batch_norm import DeferredBatchNorm, defer_batch_norms, memory_gaps
from mpcourse.pipeline.dropout import ReproducibleDropout
from mpcourse.pipeline.losses import microbatch_shares
from mpcourse.pipeline.microbatch import microbatch_sizes
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.prediction import StageLines, compare, predict_step, timed_sizes
from mpcourse.pipeline.stage import Stage
from mpcourse.pipeline.sweeps import (
    measure_stages,
    measure_step,
    measure_sweep,
    measure_unsplit,
    split_work,
)
from mpcourse.pipeline.trials import try_schedule
