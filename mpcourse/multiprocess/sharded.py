"""FSDP: every rank keeps a part of each weight, and all the parts only while it computes."""

import argparse
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mpcourse.multiprocess.rank import Rank


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers held here and in all, and the loss before and after a step."""
    mesh = init_device_mesh(rank.device.type, (rank.world_size,))
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(rank.device)
    whole = sum(parameter.numel() for parameter in net.parameters())
    rows = torch.randn(rank.world_size, 32, 64)[rank.rank].to(rank.device)
    targets = torch.arange(32, device=rank.device) % 10

    for layer in (net[0], net[2], net):  # each is gathered, used and dropped on its own
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(2):
        rank.at("forward", step)
        loss = nn.functional.cross_entropy(net(rows), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    held = sum(parameter.to_local().numel() for parameter in net.parameters())
    return {"whole": whole, "held": held, "losses": losses}
