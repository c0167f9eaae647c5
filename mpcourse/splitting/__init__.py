"""Models cut into stages, and what a cut means (pages `split_a_model`, `resnet50_on_two_devices`).

`splits` cuts a Sequential and holds `ToyModel`, `resnet` holds ResNet50 over two devices, `cuts`
counts and `block_times` measures what every cut means, `placement` tries one on GPUs that nobody
has.
"""

from mpcourse.splitting.block_times import measure_blocks
from mpcourse.splitting.cuts import (
    crossing_bytes,
    cut_costs,
    shares_before,
)
from mpcourse.splitting.placement import Transfer, try_placement
from mpcourse.splitting.resnet import (
    ModelParallelResNet50,
    PipelineParallelResNet50,
    resnet_blocks,
    thin_resnet50,
)
from mpcourse.splitting.splits import ToyModel, balanced_bounds, layer_costs, split_sequential
