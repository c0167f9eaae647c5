"""Reference implementations of the course: split a network, pipeline it, make it smaller.

The map, from the ground up (imports point down only):

| module                         | holds                                                     |
|--------------------------------|-----------------------------------------------------------|
| `timeline`                     | `Event`, `Timeline`: who worked when                      |
| `actions`, `validate`          | what a schedule is made of, and whether it is legal       |
| `schedules`, `zero_bubble`     | the schedules: naive, GPipe, 1F1B, interleaved, ZB        |
| `simulate`                     | a schedule with costs becomes a `Timeline`                |
| `builder`                      | a schedule built by hand, a legal move at a time          |
| `results`, `workers`, `lanes`  | the thread that owns a device, and what it owes           |
| `devices`                      | `get_devices`, `describe_devices`, `synchronize`          |
| `modes`                        | gradients, inference, autocast: carried into the workers  |
| `timing`, `work`               | `measure` -> `Timing`, `measure_timeline`; jobs to time   |
| `scatter_gather`               | cut a batch over devices, bring the pieces together       |
| `replicate`, `parallel_apply`  | copy a module; run the copies at the same time            |
| `data_parallel`, `anatomy`     | the four verbs put together; where their time goes        |
| `ring_steps`                   | what a ring all-reduce holds and sends, step by step      |
| `microbatch`, `losses`         | cut a mini-batch; add up the losses of its parts          |
| `splits`, `resnet`             | models cut into stages; ResNet50 over two devices         |
| `cuts`                         | what every cut between two blocks would mean              |
| `pretended`, `placement`       | a placement, tried on GPUs that are not there             |
| `stage`, `clocks`              | one stage and what it keeps; when its actions ran         |
| `engine`, `pipeline`           | run a schedule over stages, and measure its `Timeline`    |
| `named_schedules`              | schedules by name                                         |
| `batch_norm`, `dropout`        | memory and draws that do not depend on the cut            |
| `process_pipeline`, `torch_stage` | torch's engine in processes: what the benchmark compares |
| `training`, `mnist_study`      | train, evaluate; five seeds, recorded for page 08         |
| `prediction`, `sweeps`         | the split-size curve: predicted, then measured            |
| `schedule_trials`              | a schedule predicted, then run and measured               |
| `models`                       | LeNet-300-100 and the convolutional net, to be made small |
| `pruning`                      | scores, masks, removed channels, sizes and latencies      |
| `sparse_training`              | pruning bit by bit, L1, lottery tickets, regrowth         |
| `studies`                      | what recorded studies share: data, training, command line |
| `pruning_study`, `sparse_study` | five seeds of pruned nets, recorded for pages 11 and 12  |
| `quantization`                 | int8 by hand, quantization-aware training, torchao        |
| `compilation`, `xla`           | TorchScript, export, compile; XLA in its own environment  |
| `quantization_study`           | five seeds of quantized nets, recorded for page 13        |
| `plans`, `plan_trials`         | plans for a pruned pipeline: forecast, then run           |
| `multiprocess`                 | what torchrun starts: DDP, torch's pipelining, 2 x 2, FSDP |
| `benchmark`                    | what workers and engine cost, and what they gain          |
| `mnist`                        | the MNIST sample that the course ships                    |
| `recordings`                   | long studies, kept as CSV with where they come from       |
| `svg`, `figures`, `source`     | data in, pictures out; source without its docstrings      |
| `widgets`                      | thin ipywidgets shells around `figures`                   |
| `checks`                       | the checks of the exercises                               |
| `setup`, `shell`, `soundness`  | behind `python -m mpcourse lab`, `test` and `check`       |
| `pages`, `page_format`         | behind `python -m mpcourse pages`                         |

Importing the package imports nothing else; its modules load when they are first named:
`import mpcourse; mpcourse.devices.get_devices(2)` works.
"""

import importlib
import pkgutil

__version__ = "0.1.0"


def __getattr__(name):
    if name in {module.name for module in pkgutil.iter_modules(__path__)}:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
