"""One step of a decoder on a mesh: pipeline x data x tensor (page `cut_inside_a_layer`)."""

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from mpcourse.transformer.decoder import Decoder
from mpcourse.transformer.parallel_vocabulary import vocab_parallel_cross_entropy
from mpcourse.transformer.tensor_parallel import cut_inside


def mesh_stage(
    model: Decoder, pipeline: ProcessGroup, tensor: ProcessGroup
) -> tuple[nn.Sequential, slice]:
    """What one rank holds: its slices of the blocks of its stage, and which of the row they are.

    Dropout draws the same masks in every share of the batch.

    Args:
        model: The same on all ranks; the stages take equally many of its layers, up to one.
        pipeline: One rank per stage.
        tensor: The ranks of one stage that share its layers.

    Raises:
        ValueError: The ends are tied and on two stages, there are more stages than layers
            (embedding, blocks, head), or the ranks of `tensor` do not divide the heads.
    """
    row = cut_inside(model, tensor).as_sequential()
    stage, stages = pipeline.rank(), pipeline.size()
    if stages > 1 and model.head.output.weight is model.embedding.tokens.weight:
        raise ValueError(f"tied ends cannot be on two of {stages} stages: make two copies, and sum")
    if stages > len(row):
        raise ValueError(f"{stages} stages for {len(row)} layers; each takes one at least")
    own = slice(stage * len(row) // stages, (stage + 1) * len(row) // stages)
    return row[own], own


def mesh_step(
    stage: nn.Sequential,
    tokens: Tensor,
    targets: Tensor,
    groups: tuple[ProcessGroup, ProcessGroup, ProcessGroup],
    *,
    num_microbatches: int,
) -> Tensor:
    """Forward and backward of one batch; adds to `.grad` that of the mean over the whole batch.

    All micro-batches go forward, then all go backward (GPipe); the gradients are averaged over
    `data` at the end. One rank of each tensor group could send for all; here each sends to its own
    partner in the next stage, so that nothing has to be broadcast there.

    Args:
        stage: From `mesh_stage`.
        tokens: (N, T), the whole batch, on every rank.
        targets: (N, T), the tokens that follow.
        groups: pipeline, data, tensor.
        num_microbatches: Into how many a rank cuts its share of the batch.

    Returns:
        The mean loss of the whole batch, 0-d, the same on all ranks.

    Raises:
        ValueError: The batch does not divide into micro-batches of equal size, or the targets
            have another shape.
        RuntimeError: Gradients are off (`torch.no_grad`).
    """
    if not torch.is_grad_enabled():
        raise RuntimeError("a step needs gradients: call it outside of torch.no_grad()")
    pipeline, data, tensor = groups
    pieces = data.size() * num_microbatches
    if any(getattr(module, "sequence", False) for module in stage.modules()):
        raise ValueError("tokens go whole from stage to stage: take the stage from mesh_stage")
    if tokens.shape != targets.shape:
        shapes = f"{tuple(tokens.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"targets (N, T) follow tokens (N, T); got {shapes}")
    if num_microbatches < 1 or len(tokens) == 0 or len(tokens) % pieces:
        raise ValueError(
            f"{len(tokens)} rows make no {pieces} equal micro-batches "
            f"({data.size()} shares, {num_microbatches} in each)"
        )
    mine = slice(data.rank() * num_microbatches, (data.rank() + 1) * num_microbatches)
    inputs, wanted = (list(t.chunk(pieces)[mine]) for t in (tokens, targets))
    first, last = pipeline.rank() == 0, pipeline.rank() == pipeline.size() - 1
    width, loss = _width(stage), _weight(stage).detach().new_zeros(())
    outputs, sent = [], []
    for number in range(num_microbatches):
        if not first:
            inputs[number] = _receive(pipeline, -1, number, (*inputs[number].shape, width), loss)
            inputs[number].requires_grad_()
        outputs.append(stage(inputs[number]))
        if last:
            losses = vocab_parallel_cross_entropy(outputs[number], wanted[number], tensor)
            outputs[number] = losses / pieces
            loss += outputs[number].detach()
        else:
            sent.append(_send(pipeline, +1, number, outputs[number].detach()))
    trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
    earlier = [parameter.grad for parameter in trained]  # of the whole batch: not to be averaged
    for parameter in trained:
        parameter.grad = None
    for number, output in enumerate(outputs):
        gradient = None if last else _receive(pipeline, +1, number, output.shape, loss)
        if output.requires_grad:
            output.backward(gradient)
        if not first:
            sent.append(_send(pipeline, -1, number, inputs[number].grad))
    for work, _ in sent:
        work.wait()
    for parameter, before in zip(trained, earlier, strict=True):
        distributed.all_reduce(parameter.grad, group=data)
        if before is not None:
            parameter.grad = before.add_(parameter.grad)
    distributed.all_reduce(loss, group=data)
    distributed.all_reduce(loss, group=pipeline)  # the other stages have added zero
    return loss


def _weight(stage: nn.Sequential) -> Tensor:
    return next(stage.parameters())


def _width(stage: nn.Sequential) -> int:
    """Numbers per token between the layers: every norm and every embedding has as many."""
    norms = [module for module in stage.modules() if isinstance(module, nn.LayerNorm)]
    return norms[0].normalized_shape[0] if norms else _weight(stage).shape[-1]


def _send(pipeline: ProcessGroup, along: int, number: int, tensor: Tensor) -> tuple:
    """Start a send to a neighbour; the tensor is returned too, to stay alive until it is sent."""
    tensor = tensor.contiguous()
    return pipeline.send([tensor], pipeline.rank() + along, number), tensor


def _receive(
    pipeline: ProcessGroup, along: int, number: int, shape: tuple[int, ...], like: Tensor
) -> Tensor:
    arrived = like.new_empty(shape)
    pipeline.recv([arrived], pipeline.rank() + along, number).wait()
    return arrived
