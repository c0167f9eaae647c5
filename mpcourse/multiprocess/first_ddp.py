"""The shortest training with DDP, and the same without its sampler.

Page `distributed_data_parallel`.
"""

import argparse
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from mpcourse.multiprocess.ddp import digest, train_step
from mpcourse.multiprocess.rank import Rank
from mpcourse.training.mnist import load_mnist
from mpcourse.training.nets import conv_net

LOADERS = ("sampler", "shuffled", "in order")


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much, and which loader each rank has."""
    words = "its share of the samples; all of them, shuffled by each rank; all in the same order"
    parser.add_argument("--loader", choices=LOADERS, default="sampler", help=words)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of each rank")


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Train; return losses (this rank's, per step) and digest (equal if the weights are)."""
    torch.manual_seed(rank.rank)  # without a seed, too, every process draws other numbers
    samples = Subset(load_mnist()[0], range(options.samples))
    sampler = DistributedSampler(samples) if options.loader == "sampler" else None
    shuffle = options.loader == "shuffled"
    loader = DataLoader(samples, options.batch_size, shuffle=shuffle, sampler=sampler)
    net = conv_net().to(rank.device)
    model = DistributedDataParallel(net)  # sends rank 0's weights to all, hooks every gradient
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(options.epochs):
        if sampler:
            sampler.set_epoch(epoch)
        for images, targets in loader:
            images, targets = images.to(rank.device), targets.to(rank.device)
            losses.append(train_step(model, optimizer, images, targets))
    return {"losses": losses, "digest": digest(net)}
