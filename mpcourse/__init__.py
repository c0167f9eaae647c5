"""Reference implementations of the course: split a network, pipeline it, make it smaller.

The map, from the ground up (imports point down only):

| module                         | holds                                                     |
|--------------------------------|-----------------------------------------------------------|
| `timeline`                     | `Event`, `Timeline`: who worked when                      |
| `actions`, `validate`          | what a schedule is made of, and whether it is legal       |
| `schedules`, `zero_bubble`     | the schedules: naive, GPipe, 1F1B, interleaved, ZB        |
| `simulate`                     | a schedule with costs becomes a `Timeline`                |
| `results`, `workers`, `lanes`  | the thread that owns a device, and what it owes           |
| `devices`                      | `get_devices`, `describe_devices`, `synchronize`          |
| `modes`                        | gradients, inference, autocast: carried into the workers  |
| `timing`, `work`               | `measure` -> `Timing`, `measure_timeline`; jobs to time   |
| `scatter_gather`               | cut a batch over devices, bring the pieces together       |
| `replicate`, `parallel_apply`  | copy a module; run the copies at the same time            |
| `data_parallel`, `anatomy`     | the four verbs put together; where their time goes        |
| `microbatch`, `losses`         | cut a mini-batch; add up the losses of its parts          |
| `splits`, `resnet`             | models cut into stages; ResNet50 over two devices         |
| `stage`, `clocks`              | one stage and what it keeps; when its actions ran         |
| `engine`, `pipeline`           | run a schedule over stages, and measure its `Timeline`    |
| `named_schedules`              | schedules by name                                         |
| `benchmark`                    | what workers and engine cost, and what they gain          |
| `mnist`                        | the MNIST sample that the course ships                    |
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
