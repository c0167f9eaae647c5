"""Reference implementations of the course: split a network, pipeline it, make it smaller.

What the course is about, its reference implementations, stands in seven folders: `schedules`,
`devices`, `data_parallel`, `splitting`, `pipeline`, `training` and `pruning`. The chapters that go
further build on them: `memory`, `multiprocess`, `sparse_training`, `quantization`, `compilation`,
`transformer` and `capstone`. The rest serves: `exercises`, `figures` and `widgets` the pages,
`benchmark` whoever measures; `commands` are `python -m mpcourse lab`, `test`, `check`, `pages`,
`handout`, `site` and `grade`.

The map, from the roof down; a folder imports only from those below it:

| folder            | holds                                                               |
|-------------------|---------------------------------------------------------------------|
| `__main__`        | the commands                                                        |
| `commands`        | set-up, the checks of the machine, how a page is stored             |
| `exercises`       | what each page asks, the solution, wrong answers; what judges       |
| `widgets`         | sliders, boards, guess boxes around the figures                     |
| `figures`         | data in, pictures out                                               |
| `benchmark`       | what workers and engine cost, beside torch's                        |
| `capstone`        | plans for a pruned pipeline: forecast, then run                     |
| `transformer`     | a decoder to read and to train, and its cuts                        |
| `compilation`     | what compilers need and refuse; XLA                                 |
| `quantization`    | int8 by hand, trained for, by a library                             |
| `sparse_training` | pruning bit by bit, lottery tickets, regrowth                       |
| `pruning`         | criteria, masks, removed channels, sizes and latencies              |
| `multiprocess`    | `%%program`, and what programs import: collectives, DDP, sharding   |
| `training`        | train, evaluate, the MNIST sample, the small nets                   |
| `pipeline`        | a smallest pipeline; micro-batches, stages, the engine; prediction  |
| `splitting`       | models cut into stages; cuts and placements                         |
| `data_parallel`   | scatter, gather, replicate, parallel_apply, DataParallel            |
| `memory`          | bytes of a step: accounted, rehearsed, counted, recomputed          |
| `devices`         | devices, their workers, honest timing                               |
| `schedules`       | a schedule is data: made, checked, simulated, a timeline            |

Importing the package imports nothing else; its folders load when they are first named:
`import mpcourse; mpcourse.devices.get_devices(2)` works.
"""

import importlib
import pkgutil
import warnings

__version__ = "0.1.0"

# torch 2.14 calls them all_gather_single and reduce_scatter_single, which torch 2.9 does not know
RENAMED = r".*(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
warnings.filterwarnings("ignore", message=RENAMED, category=FutureWarning)


def __getattr__(name):
    if name in {module.name for module in pkgutil.iter_modules(__path__)}:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
