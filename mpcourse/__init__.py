"""Reference implementations of the course: split a network, pipeline it, make it smaller.

The map, from the ground up (imports point down only):

| module                        | holds                                                      |
|-------------------------------|------------------------------------------------------------|
| `timeline`                    | `Event`, `Timeline`: who worked when; standard library only |
| `results`, `workers`, `lanes` | one thread that owns a device; what it owes; how it differs |
| `devices`                     | `get_devices`, `describe_devices`, `synchronize`           |
| `timing`                      | `measure` -> `Timing`; `measure_timeline` -> `Timeline`    |
| `scatter_gather`              | cut a batch over devices, bring the pieces together        |
| `replicate`, `parallel_apply` | copy a module; run the copies at the same time             |
| `data_parallel`               | the four verbs put together                                |
| `mnist`                       | the MNIST sample that the course ships                     |
| `figures`                     | data in, pictures out; measures nothing                    |
| `widgets`                     | thin ipywidgets shells around `figures`                    |
| `checks`                      | the checks of the exercises                                |
| `pages`, `setup`, `soundness` | behind `python -m mpcourse pages`, `lab`, `test`, `check`  |

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
