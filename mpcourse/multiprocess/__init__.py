"""What programs under torchrun import, and `%%program`, which writes and starts them from a page.

Pages `collectives`, `distributed_data_parallel`, `torch_pipelining`, `ranks_and_hosts`,
`sharded_data_parallel` and `cut_inside_a_layer`.

| module              | holds                                                          |
|---------------------|----------------------------------------------------------------|
| `scripts`           | programs that a page writes, started by torchrun's own line    |
| `startup`           | read by each of their processes: torch's threads end first     |
| `in_threads`        | ranks as threads of this process, to try things out            |
| `ring_steps`        | what a ring holds and sends, counted without a process         |
| `buckets`           | data parallelism by hand: gradients averaged in buckets        |
| `shards`            | a tensor in equal parts, one for each rank                     |
| `sharded_optimizer` | the optimizer's state, then gradients, sharded (ZeRO 1 and 2)  |
| `fully_sharded`     | parameters sharded, whole only where they are used (ZeRO 3)    |
| `shared_sum`        | two ranks add through memory that both see                     |
| `torch_stage`       | torch's pipeline stage, also for gloo in torch 2.9             |
"""

from mpcourse.multiprocess.buckets import BucketedDataParallel
from mpcourse.multiprocess.fully_sharded import FullySharded
from mpcourse.multiprocess.in_threads import (
    ranks_in_threads,
    timed_in_turns,
    torch_ranks_in_threads,
)
from mpcourse.multiprocess.ring_steps import ring_states
from mpcourse.multiprocess.sharded_optimizer import ShardedOptimizer
from mpcourse.multiprocess.shared_sum import SharedSum
