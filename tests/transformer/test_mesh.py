"""A step on a mesh of pipeline, data and tensor is the step of one process."""

import copy
import itertools

import pytest
import torch
from processes import printed_by
from torch import nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import Decoder, cut_inside, mesh_stage, mesh_step


def a_decoder() -> Decoder:
    torch.manual_seed(0)
    model = Decoder(vocabulary=12, width=8, heads=2, layers=2, context=4).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (4, 1, 1), (2, 2, 2)]
)
def test_loss_and_every_gradient_are_those_of_one_process(shape: tuple[int, int, int]):
    model = a_decoder()
    tokens, targets = torch.randint(12, (2, 8, 4))
    right = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    right.backward()
    gradients = a_decoder()
    with torch.no_grad():
        for copied, original in zip(gradients.parameters(), model.parameters(), strict=True):
            copied.copy_(original.grad)
    assert right > 1

    def program(*groups):
        stage, own = mesh_stage(model, groups[0], groups[2])
        loss = mesh_step(stage, tokens, targets, groups, num_microbatches=4)
        wanted = cut_inside(gradients, groups[2]).as_sequential()[own]
        for parameter, gradient in zip(stage.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, gradient.detach(), rtol=0, atol=1e-12)
        return loss.item(), own

    results = ranks_in_threads(program, shape)
    assert [loss for loss, _ in results] == pytest.approx([right.item()] * len(results), abs=1e-12)
    layers = [range(4)[own] for _, own in results[:: shape[1] * shape[2]]]
    assert list(itertools.chain(*layers)) == [0, 1, 2, 3]


def test_what_does_not_come_out_is_refused():
    model = a_decoder()
    tokens = torch.zeros(6, 4, dtype=torch.long)

    def program(*groups):
        with pytest.raises(ValueError, match="6 rows make no 4 equal micro-batches"):
            mesh_step(nn.Sequential(), tokens, tokens, groups, num_microbatches=2)
        with pytest.raises(ValueError, match="no 0 equal micro-batches"):
            mesh_step(nn.Sequential(), tokens, tokens, groups, num_microbatches=0)
        with pytest.raises(ValueError, match="0 rows make no 2 equal micro-batches"):
            mesh_step(nn.Sequential(), *2 * [tokens[:0]], groups, num_microbatches=1)
        with pytest.raises(ValueError, match=r"tokens \(N, T\); got \(6, 4\) and \(3, 4\)"):
            mesh_step(nn.Sequential(), tokens, tokens[:3], groups, num_microbatches=1)
        with torch.no_grad(), pytest.raises(RuntimeError, match="call it outside of"):
            mesh_step(nn.Sequential(), tokens, tokens, groups, num_microbatches=1)
        stage = cut_inside(model, groups[2], sequence=True).as_sequential()
        with pytest.raises(ValueError, match="whole from stage to stage: take the stage from mesh"):
            mesh_step(stage, tokens, tokens, groups, num_microbatches=1)
        return True

    assert all(ranks_in_threads(program, (1, 2, 1)))
    tied = Decoder(12, 8, 2, 2, 4, tied=True)
    with pytest.raises(ValueError, match="tied ends cannot be on two of 2 stages"):
        ranks_in_threads(lambda *groups: mesh_stage(tied, groups[0], groups[2]), (2, 1, 1))
    with pytest.raises(ValueError, match="5 stages for 4 layers; each takes one at least"):
        ranks_in_threads(lambda *groups: mesh_stage(model, groups[0], groups[2]), (5, 1, 1))


FROZEN = ["", "0", "0.tokens", "1.attention", "2.mlp.down.bias", "3", "0 1 2 3"]


@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 1, 2), (4, 2, 1)])
@pytest.mark.parametrize("frozen", FROZEN)
def test_steps_add_up_and_pass_over_what_is_frozen(frozen: str, shape: tuple[int, int, int]):
    """Two steps on two batches have the gradients that one process adds up."""
    model = a_decoder()
    batches = torch.randint(12, (2, 2, 4, 4))
    for name in frozen.split():
        model.as_sequential().get_submodule(name.removesuffix(".bias")).requires_grad_(False)
    for tokens, targets in batches:
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        if loss.requires_grad:
            loss.backward()
    right = copy.deepcopy(model)
    for parameter, original in zip(right.parameters(), model.parameters(), strict=True):
        filled = torch.full_like(original, 7.0) if original.grad is None else original.grad
        parameter.data.copy_(filled)

    def program(*groups):
        stage, own = mesh_stage(model, groups[0], groups[2])
        wanted = cut_inside(right, groups[2]).as_sequential()[own]
        for tokens, targets in batches:
            mesh_step(stage, tokens, targets, groups, num_microbatches=2)
        for parameter, gradient in zip(stage.parameters(), wanted.parameters(), strict=True):
            assert (parameter.grad is None) == (not parameter.requires_grad)
            if parameter.requires_grad:
                torch.testing.assert_close(parameter.grad, gradient.detach(), rtol=0, atol=1e-12)

    ranks_in_threads(program, shape)


EIGHT = """
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from mpcourse.transformer import Decoder, cut_inside, mesh_stage, mesh_step
distributed.init_process_group("gloo")
names = ("pipeline", "data", "tensor")
mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
groups = tuple(mesh.get_group(name) for name in names)
torch.manual_seed(0)
model = Decoder(vocabulary=32, width=16, heads=4, layers=3, context=8).double()
tokens, targets = torch.randint(32, (2, 8, 8))
right = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
right.backward()
stage, own = mesh_stage(model, groups[0], groups[2])
loss = mesh_step(stage, tokens, targets, groups, num_microbatches=2)
torch.testing.assert_close(loss, right.detach(), rtol=0, atol=1e-10)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(parameter.grad)
wanted = cut_inside(model, groups[2]).as_sequential()[own]
for parameter, gradient in zip(stage.parameters(), wanted.parameters(), strict=True):
    torch.testing.assert_close(parameter.grad, gradient.detach(), rtol=0, atol=1e-10)
print(mesh.get_coordinate())
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_eight_processes_have_the_loss_and_gradients_of_one():
    places = [str(list(place)) for place in itertools.product(range(2), repeat=3)]
    assert [line.replace("(", "[").replace(")", "]") for line in printed_by(EIGHT, 8)] == places
