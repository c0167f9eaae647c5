"""Cut a batch, run copies of a module on the pieces, bring the results together.

The four verbs `scatter`, `replicate`, `parallel_apply` and `gather`, and `DataParallel`, which is
made of them (pages `scatter_and_gather` and `parallel_apply`); `anatomy` shows
the step of a split model.
"""

from mpcourse.data_parallel.anatomy import split_step_timeline
from mpcourse.data_parallel.replicas import DataParallel, parallel_apply, replicate
from mpcourse.data_parallel.scatter_gather import gather, scatter
