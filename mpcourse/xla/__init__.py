"""XLA's view of a training step (page 13): run by a torch of its own, or read from its recording.

`python -m mpcourse.xla` makes the environment `.venv-xla` from `requirements-xla.txt`, runs
`mpcourse.xla.step` in it and records what it saw in `data/`.

| module      | holds                                                           |
|-------------|-----------------------------------------------------------------|
| `step`      | some training steps on XLA; needs torch_xla                     |
| `run`       | the run of this machine, or the recorded one; the HLO, counted  |
| `__main__`  | the command                                                     |
"""

from mpcourse.xla.run import (
    XlaRun,
    count_operations,
    read_xla_run,
    run_in,
    xla_environment,
    xla_run,
)

__all__ = [
    "XlaRun",
    "count_operations",
    "read_xla_run",
    "run_in",
    "xla_environment",
    "xla_run",
]
