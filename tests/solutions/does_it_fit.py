"""Solutions: saved bytes, the largest batch, a part not to be recomputed, extra bytes, ranks."""

import torch
from torch import nn


def my_saved_bytes(model, inputs):
    """The hooks see every tensor that is saved; a dictionary keeps each storage once.

    Storages are told apart by where they begin. Parameters and inputs are saved too, so their
    storages are known from the start and left out of the sum.
    """
    held = {t.untyped_storage().data_ptr() for t in [*model.parameters(), inputs]}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(inputs)
    del outputs
    return sum(size for start, size in saved.items() if start not in held)


def my_largest_batch(resident, gradients, per_sample, limit):
    """Gradients come while activations go, so the larger of the two has to fit beside the rest.

    The gradients are the same for every batch. Where they alone do not fit, no batch does.
    """
    room = limit - resident
    return max(0, room // per_sample) if gradients <= room else 0


def my_slip():
    """A batch norm changes its running statistics whenever it runs forward in training.

    With checkpoint it runs twice for one batch, so the statistics move twice. The gradients are
    right, and only the evaluation, much later, is a little off.
    """
    return nn.BatchNorm1d(4)


def my_extra_bytes(step, held):
    """A counter that is told what was there sees what the step makes, and when it goes.

    Its peak, less what was live before, is what the step needs. The page's `CountBytes` does as
    well.
    """
    from mpcourse.memory import ByteCounter

    with ByteCounter(held) as counter:
        before = counter.live
        step()
    return counter.peak - before


def my_bytes_of_a_rank(sizes, ranks, stage):
    """Four tensors for each parameter: weights, gradients and two averages.

    Each stage makes parts of one kind more, the most bytes first. Parts are rounded up, each
    parameter by itself.
    """
    whole, part = sum(sizes), sum(-(-size // ranks) for size in sizes)
    weights = whole if stage < 3 else part
    gradients = whole if stage < 2 else part
    state = 2 * (whole if stage < 1 else part)
    return 4 * (weights + gradients + state)
