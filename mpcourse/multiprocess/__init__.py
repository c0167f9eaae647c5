"""Programs that torchrun starts, and the helper that starts them from a page.

Pages `collectives`, `distributed_data_parallel` and `torch_pipelining`.

On a command line: `python -m torch.distributed.run --standalone --nproc-per-node 2 -m
mpcourse.multiprocess ddp --epochs 1`. From a page: `launch("ddp", processes=2, epochs=1)`.

| module                        | holds                                                      |
|-------------------------------|------------------------------------------------------------|
| `launch`, `blame`             | start, follow, stop; which rank is to blame                |
| `torchrun`, `hosts`           | the command line, for one host and for several             |
| `rank`, `faults`              | one process and what it reports; faults to order           |
| `programs`, `__main__`        | the programs by name                                       |
| `scripts`                     | programs that a page writes, run by torchrun's own line    |
| `leaving`                     | what they read as they start: torch's threads end first    |
| `collectives`, `buckets`      | broadcast and all-reduce by hand; DDP by hand, in buckets  |
| `all_reduce`, `gradients`     | programs: the same sums, the same gradients, several ways  |
| `in_threads`                  | ranks as threads of this process, to try things out        |
| `overlapped`                  | program: all-reduce beside the backward                    |
| `ddp`                         | program: training with DDP                                 |
| `speed`                       | program: one device, DataParallel and DDP, in turns        |
| `several`                     | program: several of these in the same processes            |
| `pipelining`, `pipeline_work` | program: torch.distributed.pipelining, and what it trains  |
| `pipelines`, `orders`         | several schedules; any order                               |
| `shards`                      | a tensor in equal parts, one for each rank                 |
| `sharded_optimizer`           | the optimizer's state, then gradients, shared out (ZeRO)   |
| `fully_sharded`               | parameters shared out, whole only where they are used      |
| `zero`                        | program: these beside torch's own                          |
| `checkpoints`                 | state that survives a killed run and a full disk           |
"""

from mpcourse.multiprocess.blame import RankError
from mpcourse.multiprocess.buckets import BucketedDataParallel
from mpcourse.multiprocess.fully_sharded import FullySharded
from mpcourse.multiprocess.in_threads import ranks_in_threads
from mpcourse.multiprocess.launch import Outcome, launch
from mpcourse.multiprocess.ring_steps import most_sent, ring_states
from mpcourse.multiprocess.sharded_optimizer import ShardedOptimizer
from mpcourse.multiprocess.torchrun import Host, torchrun_command
