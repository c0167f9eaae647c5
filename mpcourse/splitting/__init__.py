"""Models cut into stages, and what a cut means (pages `split_a_model`, `resnet50_on_two_devices`).

`splits` cuts a Sequential and holds `ToyModel`, `resnet` holds ResNet50 over two devices, `cuts`
counts and `block_times` measures what every cut means, `placement` tries one on GPUs that nobody
has. `resnet` is imported when one of its names is asked for: torchvision takes seconds.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mpcourse.splitting.block_times import measure_blocks
from mpcourse.splitting.cuts import (
    cut_costs,
    shares_before,
)
from mpcourse.splitting.placement import Transfer, try_placement
from mpcourse.splitting.splits import ToyModel, balanced_bounds, layer_costs, split_sequential

if TYPE_CHECKING:
    from mpcourse.splitting.resnet import (
        ModelParallelResNet50,
        PipelineParallelResNet50,
        resnet_blocks,
        thin_resnet50,
    )

RESNET = ("ModelParallelResNet50", "PipelineParallelResNet50", "resnet_blocks", "thin_resnet50")


def __getattr__(name: str) -> Any:
    if name not in RESNET:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.resnet"), name)
