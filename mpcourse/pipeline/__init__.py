"""A schedule carried out on real tensors and devices (pages `pipeline` and `train_mnist`).

`smallest` is a pipeline in forty lines: read it first. `microbatch` cuts a mini-batch and weighs
its losses; a `Stage` keeps what its backward needs, or makes it anew, and `put_off` cuts that
backward in two; the `engine` runs the actions; `Pipeline` is all of them together. `batch_norm` and
`dropout` make a cut batch count as one; `prediction` compares forecasts with measurements, and
`race` the pipeline with its rivals.
"""

from mpcourse.pipeline.batch_norm import DeferredBatchNorm, defer_batch_norms
from mpcourse.pipeline.dropout import ReproducibleDropout
from mpcourse.pipeline.microbatch import microbatch_shares, microbatch_sizes
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.prediction import (
    StageLines,
    measure_stages,
    predict_step,
    split_work,
    timed_sizes,
)
from mpcourse.pipeline.stage import Stage
