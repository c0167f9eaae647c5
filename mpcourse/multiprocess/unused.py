"""A net that leaves some parameters unused in each step, under DDP: with the flag and without."""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mpcourse.multiprocess.rank import Rank


class TwoBranches(nn.Module):
    """One trunk and two branches, of which each forward takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.branches = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, rows: Tensor, branch: int) -> Tensor:
        """Take rows of shape (N, 4) to (N, 1)."""
        return self.branches[branch](self.trunk(rows).relu())


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Try four steps without `find_unused_parameters` and with it.

    Returns:
        without, with: steps (how many went well), said (by DDP, at the one that failed) and
        gradient (of the trunk's weight after the first step: this rank's own, or the average).
    """
    return {"without": _train(rank, find=False), "with": _train(rank, find=True)}


def _train(rank: Rank, *, find: bool) -> dict[str, Any]:
    net = TwoBranches().to(rank.device)
    model = DistributedDataParallel(net, find_unused_parameters=find)
    rows = torch.randn(8, 4).to(rank.device) + rank.rank
    gradients = []
    said = ""
    for step, branch in enumerate((0, 1, 0, 1)):
        rank.at("forward", step)
        try:
            model(rows, branch).mean().backward()
        except RuntimeError as error:
            said = str(error)
            break
        gradients.append(net.trunk.weight.grad.tolist())
        model.zero_grad()
    return {"steps": len(gradients), "said": said, "gradient": gradients[0]}
