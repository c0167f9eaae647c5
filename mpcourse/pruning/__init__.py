"""Making a network smaller by leaving weights out (pages `pruning` and `sparse_training`).

Scores say how much a weight matters, masks which weights stay, and both are plain dictionaries
from the name of a layer to a tensor:

    scores = magnitude(model)
    masks = global_masks(scores, sparsity=0.9)
    apply_masks(model, masks)   # by torch.nn.utils.prune
    make_permanent(model)

| module       | holds                                                                  |
|--------------|------------------------------------------------------------------------|
| `layers`     | the layers whose weights are pruned, and their weights                 |
| `criteria`   | scores: random, magnitude, gradient, SNIP, movement, channel norms     |
| `masks`      | scores become masks: per layer, global, N of every M                   |
| `masked`     | masks on a model: put on, changed, removed for good                     |
| `links`      | which layer reads the channels that another one writes                 |
| `structured` | channels set to zero, or really removed                                |
| `formats`    | bytes on disk: dense, compressed, sparse; and back into a model        |
| `sizes`      | multiply-adds of a forward                                             |
| `latency`    | the time of a forward: zeros in dense kernels, CSR, smaller layers     |
"""

from mpcourse.pruning.criteria import (
    Movement,
    channel_norms,
    gradient,
    magnitude,
    random_scores,
    snip,
)
from mpcourse.pruning.formats import bytes_in_formats, in_format, load_format
from mpcourse.pruning.latency import SparseLinear, latencies, to_sparse
from mpcourse.pruning.layers import count_nonzeros, prunable_layers, weight_of
from mpcourse.pruning.links import Link, channel_links
from mpcourse.pruning.masked import (
    apply_masks,
    make_permanent,
    masks_of,
    update_masks,
)
from mpcourse.pruning.masks import global_masks, layer_masks, n_m_masks, sparsity_of
from mpcourse.pruning.sizes import multiply_adds
from mpcourse.pruning.structured import remove_channels, zero_channels
