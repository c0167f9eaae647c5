"""Train the convolutional net on MNIST with DistributedDataParallel.

Page `distributed_data_parallel`.
"""

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from mpcourse.multiprocess.checkpoints import Checkpoints
from mpcourse.multiprocess.rank import Rank
from mpcourse.training.loop import evaluate
from mpcourse.training.mnist import load_mnist
from mpcourse.training.nets import conv_net

LOSS = nn.CrossEntropyLoss()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the training."""
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32, help="samples of each rank")
    parser.add_argument("--samples", type=int, default=4000, help="of the training set")
    parser.add_argument("--test-samples", type=int, default=1000, help="of the test set")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--checkpoints", help="a folder; the run goes on from what is in it")
    parser.add_argument("--save-every", type=int, default=1, help="steps")


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Train, and return what this rank has seen.

    Returns:
        losses (this rank's, per step), seen (the samples it trained on in the last epoch, in
        order), accuracy (on the test set; rank 0's), resumed_at (step), seconds (of a step, the
        median), digest (equal if the weights are), state (the weights; rank 0's).
    """
    train, test = load_mnist()
    train = Subset(train, range(min(options.samples, len(train))))
    sampler = DistributedSampler(train, seed=options.seed)
    loader = DataLoader(train, options.batch_size, sampler=sampler)

    net = conv_net().to(rank.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.learning_rate, momentum=0.9)
    checkpoints = Checkpoints(options.checkpoints, rank, options.save_every)
    state = checkpoints.load() or {"step": 0, "losses": []}
    step, losses = state["step"], state["losses"]
    if step:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        if rank.rank == 0:
            rank.say(f"goes on after step {step}")
    model = DistributedDataParallel(net)  # rank 0's weights go to all
    model.register_comm_hook(rank, _announced_all_reduce)

    resumed_at, seconds = step, []
    for images, targets in _batches(loader, sampler, options.epochs, after=step):
        start = time.perf_counter()
        rank.at("step", step)
        images, targets = images.to(rank.device), targets.to(rank.device)
        losses.append(train_step(model, optimizer, images, targets, rank.at))
        step += 1
        seconds.append(time.perf_counter() - start)
        saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        checkpoints.save(step, saved)
        if rank.rank == 0 and step % len(loader) == 0:
            rank.say(f"epoch {step // len(loader)} of {options.epochs}: loss {losses[-1]:.3f}")
    result = {
        "losses": losses,
        "seen": list(sampler),
        "resumed_at": resumed_at,
        "seconds": statistics.median(seconds) if seconds else 0.0,
        "digest": digest(net),
    }
    if rank.rank == 0:
        test = Subset(test, range(min(options.test_samples, len(test))))
        result["accuracy"] = evaluate(net, DataLoader(test, 250), LOSS).accuracy
        result["state"] = net.cpu().state_dict()
    return result


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    targets: Tensor,
    at: Callable[[str], None] = lambda where: None,
) -> float:
    """One step of any model; nothing in it knows of other processes.

    Args:
        model: Plain, in DDP or in `DataParallel`.
        optimizer: Of its parameters.
        images: Of shape (N, 1, 28, 28).
        targets: Class numbers of shape (N,), where the model's outputs are.
        at: Called with "forward" and "backward" before each.

    Returns:
        The loss before the step.
    """
    optimizer.zero_grad()
    at("forward")
    loss = LOSS(model(images), targets)
    at("backward")
    loss.backward()
    optimizer.step()
    return loss.item()


def _batches(
    loader: DataLoader, sampler: DistributedSampler, epochs: int, *, after: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of all epochs, without the first `after`: what a run that goes on has to see."""
    for epoch in range(after // len(loader), epochs):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        for index, batch in enumerate(loader):
            if epoch * len(loader) + index >= after:
                yield batch


def _announced_all_reduce(
    rank: Rank, bucket: distributed.GradBucket
) -> torch.futures.Future[Tensor]:
    """DDP's own all-reduce, after a note that it begins."""
    rank.at("all-reduce")
    return allreduce_hook(None, bucket)


def digest(net: nn.Module) -> str:
    """A short string that is equal for two nets if all their numbers are."""
    numbers = hashlib.sha256()
    for name, value in net.state_dict().items():
        numbers.update(name.encode())
        numbers.update(value.detach().cpu().contiguous().numpy().tobytes())
    return numbers.hexdigest()[:12]
