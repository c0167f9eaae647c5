"""FSDP: every rank keeps a part of each weight, and all the parts only while it computes."""

import argparse
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mpcourse.multiprocess.rank import Rank


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers held here and in all, the losses, and the difference to the uncut net."""
    mesh = init_device_mesh(rank.device.type, (rank.world_size,))
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(rank.device)
    alone, rows = copy.deepcopy(net), torch.randn(rank.world_size, 32, 64, device=rank.device)

    for layer in (net[0], net[2], net):  # each is gathered, used and dropped on its own
        fully_shard(layer, mesh=mesh)
    rank.at("forward", 0)
    losses = _train(net, rows[rank.rank])  # each rank has rows of its own
    _train(alone, rows.flatten(0, 1))
    pairs = list(zip(net.parameters(), alone.parameters(), strict=True))
    return {
        "whole": sum(whole.numel() for _, whole in pairs),
        "held": sum(part.to_local().numel() for part, _ in pairs),
        "losses": losses,
        "error": max((a.full_tensor() - b).abs().max().item() for a, b in pairs),
    }


def _train(net: nn.Module, rows: Tensor) -> list[float]:
    """Two steps on rows of shape (N, 64); the losses."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    targets = torch.arange(len(rows), device=rows.device) % 32 % 10
    losses = []
    for _ in range(2):
        loss = nn.functional.cross_entropy(net(rows), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
