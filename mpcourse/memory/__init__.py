"""Bytes of a training step: accounted for, rehearsed, counted, and saved by recomputing.

Pages `does_it_fit` and `sharded_data_parallel`.
"""

from mpcourse.memory.accounting import (
    Account,
    StepBytes,
    account,
    count_step,
    nbytes,
    optimizer_bytes,
    rehearse_step,
)
from mpcourse.memory.counting import ByteCounter, saved_for_backward
from mpcourse.memory.per_rank import MODELS, LanguageModel, bytes_per_rank
from mpcourse.memory.recompute import recomputed
