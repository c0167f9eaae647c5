"""One device, DataParallel's threads, DDP's processes: the same step, in turns.

Page `distributed_data_parallel`.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mpcourse.data_parallel.data_parallel import DataParallel
from mpcourse.devices.devices import Device, as_devices
from mpcourse.multiprocess.ddp import LOSS, train_step
from mpcourse.multiprocess.rank import Rank
from mpcourse.training.mnist import load_mnist
from mpcourse.training.nets import conv_net

WARMUP = 2
WAYS = ("one device", "one device, in parts", "DataParallel", "DDP")


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much, how often."""
    parser.add_argument("--batch-size", type=int, default=128, help="samples of all ranks together")
    parser.add_argument("--repeats", type=int, default=7)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Train copies of a net on the same mini-batch and time each step.

    All steps run in a worker with one thread. "One device, in parts" takes each rank's samples one
    after the other: the same work as in DDP, on one device. While rank 0 runs what needs only one
    process, the others wait, and their devices are free.

    Returns:
        seconds (way -> of each counted repeat, until the last rank had ended), differences (way ->
        largest one between its weights and one device's, after all steps; rank 0's).
    """
    images, targets = _batch(rank, options.batch_size)
    shards = [slice(first, None, rank.world_size) for first in range(rank.world_size)]
    caller = as_devices([f"cpu:{rank.world_size}"])[0]  # a worker beside those of DataParallel
    if rank.device.type == "cuda":
        caller.run(torch.cuda.set_device, rank.device)
    waiting = distributed.new_group(backend="gloo")  # nccl would wait on the GPU itself

    net = conv_net().to(rank.device)
    models: dict[str, nn.Module] = {"DDP": DistributedDataParallel(copy.deepcopy(net))}
    if rank.rank == 0:
        alone = {way: copy.deepcopy(net) for way in WAYS[:3]}
        models |= {**alone, "DataParallel": DataParallel(alone["DataParallel"], _devices(rank))}
    parts = {"DDP": shards[rank.rank : rank.rank + 1], "one device, in parts": shards}
    whole = [slice(None)]
    steps = {
        way: _step(model, [(images[part], targets[part]) for part in parts.get(way, whole)])
        for way, model in models.items()
    }
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(WARMUP + options.repeats):
        for way, times in seconds.items():
            rank.at("forward")
            times.append(_timed(caller, steps.get(way), waiting))
    return {
        "seconds": {way: times[WARMUP:] for way, times in seconds.items()},
        "differences": {way: _difference(m, models["one device"]) for way, m in models.items()}
        if rank.rank == 0
        else {},
    }


def _batch(rank: Rank, size: int) -> tuple[Tensor, Tensor]:
    if size % rank.world_size:
        raise ValueError(f"{rank.world_size} ranks do not divide a batch of {size} samples")
    train, _ = load_mnist()
    samples = [train[index] for index in range(min(size, len(train)))]
    images = torch.stack([image for image, _ in samples])
    return images.to(rank.device), torch.tensor([t for _, t in samples]).to(rank.device)


def _devices(rank: Rank) -> list[Device]:
    """As many devices as there are ranks, of the ranks' own kind."""
    return as_devices([f"{rank.device.type}:{index}" for index in range(rank.world_size)])


def _step(model: nn.Module, parts: list[tuple[Tensor, Tensor]]) -> Callable[[], Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if len(parts) == 1:
        return lambda: train_step(model, optimizer, *parts[0])
    return lambda: _step_in_parts(model, optimizer, parts)


def _step_in_parts(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: list[tuple[Tensor, Tensor]]
) -> float:
    """Like `train_step`, with the gradients of equal parts added up before the step."""
    optimizer.zero_grad()
    losses = []
    for images, targets in parts:
        loss = LOSS(model(images), targets) / len(parts)
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    return sum(losses).item()  # last: it waits for a GPU, the step included


def _timed(
    caller: Device, step: Callable[[], Any] | None, waiting: distributed.ProcessGroup
) -> float:
    """Seconds from a common start until the last rank has ended."""
    distributed.barrier(waiting)
    start = time.perf_counter()
    if step is not None:
        caller.run(step)  # it ends with loss.item(), which waits for a GPU too
    took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    distributed.all_reduce(took, distributed.ReduceOp.MAX, group=waiting)
    return took.item()


def _difference(model: nn.Module, other: nn.Module) -> float:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def speedups(seconds: dict[str, list[float]], baseline: str) -> dict[str, float]:
    """How many times as fast as the baseline each way is, by the medians."""
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    return {way: medians[baseline] / median for way, median in medians.items()}
