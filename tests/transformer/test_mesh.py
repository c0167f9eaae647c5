"""A step on a mesh of pipeline, data and tensor is the step of one process."""

import itertools

import pytest
import torch
from cut_decoders import LAYERS, N, T, V, check_mesh_steps, random_decoder, uncut_loss
from torch import nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import cut_inside, mesh_stage, mesh_step

FROZEN = ["", "0", "0.tokens", "1.attention", "2.mlp.down.bias", "3", "0 1 2 3"]
SHAPES = [(1, 1, 1), (2, 1, 1), (1, 1, 2), (4, 1, 1), (2, 2, 2)]
CASES = [("", shape) for shape in SHAPES]
CASES += itertools.product(FROZEN, [(1, 2, 1), (2, 1, 2), (4, 2, 1)])


@pytest.mark.parametrize(("frozen", "shape"), CASES)
def test_steps_have_losses_and_gradients_of_one_process(frozen: str, shape: tuple[int, int, int]):
    """Two steps on two batches add up their gradients, and pass over what is frozen."""
    model = random_decoder()
    batches = torch.randint(V, (2, 2, N, T))
    for name in frozen.split():
        model.as_sequential().get_submodule(name.removesuffix(".bias")).requires_grad_(False)
    losses = [uncut_loss(model, *batch) for batch in batches]
    assert min(losses) > 1
    for loss in losses:
        if loss.requires_grad:
            loss.backward()
    owned = ranks_in_threads(lambda *groups: check_mesh_steps(model, batches, groups), shape)
    layers = [range(LAYERS + 2)[own] for own in owned[:: shape[1] * shape[2]]]
    assert [*itertools.chain(*layers)] == [*range(LAYERS + 2)]


def test_what_does_not_come_out_is_refused():
    model = random_decoder()
    tokens = torch.zeros(6, 4, dtype=torch.long)

    def program(*groups):
        for batch, targets, count, problem in (
            (tokens, tokens, 2, "6 rows make no 4 equal micro-batches"),
            (tokens, tokens, 0, "no 0 equal micro-batches"),
            (tokens[:0], tokens[:0], 1, "0 rows make no 2 equal micro-batches"),
            (tokens, tokens[:3], 1, r"tokens \(N, T\); got \(6, 4\) and \(3, 4\)"),
        ):
            with pytest.raises(ValueError, match=problem):
                mesh_step(nn.Sequential(), batch, targets, groups, num_microbatches=count)
        with torch.no_grad(), pytest.raises(RuntimeError, match="call it outside of"):
            mesh_step(nn.Sequential(), tokens, tokens, groups, num_microbatches=1)
        stage = cut_inside(model, groups[2], sequence=True).as_sequential()
        with pytest.raises(ValueError, match="whole from stage to stage: take the stage from mesh"):
            mesh_step(stage, tokens, tokens, groups, num_microbatches=1)

    ranks_in_threads(program, (1, 2, 1))
    tied = random_decoder(tied=True)
    with pytest.raises(ValueError, match="tied ends cannot be on two of 2 stages"):
        ranks_in_threads(lambda *groups: mesh_stage(tied, groups[0], groups[2]), (2, 1, 1))
    with pytest.raises(ValueError, match="5 stages for 4 layers; each takes one at least"):
        ranks_in_threads(lambda *groups: mesh_stage(model, groups[0], groups[2]), (5, 1, 1))
