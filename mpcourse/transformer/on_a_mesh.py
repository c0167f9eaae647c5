"""A program for torchrun: one step of a decoder on eight ranks, beside one process.

`launch("mpcourse.transformer.on_a_mesh", processes=8)` (page `cut_inside_a_layer`).
"""

import argparse
import math
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from mpcourse.multiprocess.rank import Rank
from mpcourse.transformer.decoder import Decoder
from mpcourse.transformer.mesh import mesh_stage, mesh_step
from mpcourse.transformer.tensor_parallel import cut_inside

AXES = ("pipeline", "data", "tensor")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The mesh."""
    parser.add_argument("--shape", type=int, nargs=3, default=(2, 2, 2), help=" x ".join(AXES))


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return this rank's place, the loss here and in one process, and the largest difference."""
    if math.prod(options.shape) != rank.world_size:
        raise ValueError(f"a mesh of {options.shape} is not {rank.world_size} ranks")
    mesh = init_device_mesh(rank.device.type, tuple(options.shape), mesh_dim_names=AXES)
    groups = tuple(mesh.get_group(name) for name in AXES)
    model = Decoder(vocabulary=32, width=16, heads=4, layers=3, context=8)
    model = model.to(rank.device, torch.float64)
    tokens, targets = torch.randint(32, (2, 8, 8)).to(rank.device)
    right = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    right.backward()

    stage, own = mesh_stage(model, groups[0], groups[2])
    rank.at("step", 0)
    loss = mesh_step(stage, tokens, targets, groups, num_microbatches=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    wanted = cut_inside(model, groups[2]).as_sequential()[own]
    pairs = zip(stage.parameters(), wanted.parameters(), strict=True)
    return {
        "place": list(mesh.get_coordinate()),
        "loss": loss.item(),
        "right": right.item(),
        "gradient_error": max((p.grad - g).abs().max().item() for p, g in pairs),
    }
