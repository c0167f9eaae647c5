"""Tensor parallelism: the first layer cut by columns, the second by rows, one all-reduce."""

import argparse
import copy
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from mpcourse.multiprocess.rank import Rank


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers held here and in all, and the differences to the uncut net."""
    mesh = init_device_mesh(rank.device.type, (rank.world_size,))
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(rank.device)
    alone, rows = copy.deepcopy(net), torch.randn(32, 64, device=rank.device)

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(net, mesh, plan)
    rank.at("forward", 0)
    output, wanted = net(rows), alone(rows)
    output.square().mean().backward()
    wanted.square().mean().backward()
    pairs = zip(net.parameters(), alone.parameters(), strict=True)
    gaps = [(part.grad.full_tensor() - whole.grad).abs().max().item() for part, whole in pairs]
    return {
        "whole": sum(parameter.numel() for parameter in alone.parameters()),
        "held": sum(parameter.to_local().numel() for parameter in net.parameters()),
        "output_error": (output - wanted).abs().max().item(),
        "gradient_error": max(gaps),
    }
