"""Training with zeros: bit by bit, from a lottery ticket, with regrowth.

Page `sparse_training`.

What has to happen around a step of the optimizer is a hook of the optimizer, torch's own way, so
that any training loop will do:

    pruner = GradualPruner(model, partial(cubic_sparsity, final=0.9, end=100))
    optimizer.register_step_post_hook(pruner)
    train_epoch(model, loader, optimizer, loss_fn)

Fine-tuning needs nothing of its own: it is training after `apply_masks`.

| module     | holds                                                                     |
|------------|---------------------------------------------------------------------------|
| `gradual`  | Zhu and Gupta's cubic schedule; pruning a little more every few steps     |
| `zeros`    | zeros of an unmasked model, kept under momentum and weight decay          |
| `tickets`  | a mask with the weights rewound to an earlier time                        |
| `regrowth` | drop small weights, grow where the gradient is large (RigL)               |
"""

from mpcourse.sparse_training.gradual import GradualPruner, cubic_sparsity
from mpcourse.sparse_training.regrowth import Regrowth, cosine_share
from mpcourse.sparse_training.tickets import rewind, snapshot
from mpcourse.sparse_training.zeros import KeepMasks, zero_pruned
