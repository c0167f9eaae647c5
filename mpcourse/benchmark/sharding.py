"""Training steps with the state or the parameters sharded over two ranks: ours beside torch's."""

import copy
import statistics
import sys
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from mpcourse.benchmark.two_ranks import (
    Row,
    Times,
    clock,
    from_all_ranks,
    rows_of,
    run_program,
    slowest,
)
from mpcourse.multiprocess.fully_sharded import FullySharded
from mpcourse.multiprocess.sharded_optimizer import ShardedOptimizer

WIDTH, ROWS, RATE = 1024, 8, 1e-3
# the net, its optimizer, and what is called between backward and step
Model = tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]


def sharded_training(layers: int, steps: int) -> list[Row]:
    """Time the ways in turns; each layer has about a million parameters."""
    return rows_of(__name__, layers, steps)


def averaged(net: nn.Module) -> Callable[[], None]:
    """Gradients averaged over the ranks after the backward, one all-reduce for each."""

    def average() -> None:
        for parameter in net.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= distributed.get_world_size()

    return average


def sharded_state(net: nn.Module) -> Model:
    """Ours: the optimizer's state in parts."""
    optimizer = ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=RATE)
    return net, optimizer, averaged(net)


def torchs_state(net: nn.Module) -> Model:
    """torch's: the states of whole parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=RATE)
    return net, optimizer, averaged(net)


def sharded_parameters(net: nn.Module) -> Model:
    """Ours: parameters in parts."""
    sharded = FullySharded(net)
    return sharded, torch.optim.AdamW(sharded.parameters(), lr=RATE), sharded.wait


def torchs_parameters(net: nn.Module) -> Model:
    """torch's: DTensors, layer by layer."""
    mesh = init_device_mesh(next(net.parameters()).device.type, (distributed.get_world_size(),))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), lr=RATE), lambda: None


PAIRS = (
    {"sharded optimizer": sharded_state, "ZeroRedundancyOptimizer": torchs_state},
    {"fully sharded": sharded_parameters, "fully_shard": torchs_parameters},
)


def train_step(model: Model, rows: Tensor, device: torch.device) -> tuple[float, float]:
    """The seconds of a step, and of the optimizer's part of it."""
    net, optimizer, finish = model
    distributed.barrier()
    start = clock(device)
    optimizer.zero_grad()
    net(rows).square().mean().backward()
    finish()
    middle = clock(device)
    optimizer.step()
    end = clock(device)
    return end - start, end - middle


def measure(device: torch.device, layers: int, steps: int) -> list[Row]:
    """In a rank: the median step of ours beside that of torch's."""
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    net, rows = nn.Sequential(*parts).to(device), torch.randn(ROWS, WIDTH, device=device)
    million = layers * (WIDTH + 1) * WIDTH / 1e6
    found = []
    for pair in PAIRS:
        models = {way: shard(copy.deepcopy(net)) for way, shard in pair.items()}
        whole: Times = {way: [] for way in pair}
        optimizers: Times = {way: [] for way in pair}
        for _ in range(steps):
            for way, model in models.items():
                seconds, part = train_step(model, rows, device)
                whole[way].append(seconds)
                optimizers[way].append(part)
        kinds = {"optimizer's step": optimizers, "whole step": whole}
        if "fully_shard" in pair:  # its optimizer is torch's own
            del kinds["optimizer's step"]
        for kind, times in kinds.items():
            medians = {w: statistics.median(t) for w, t in slowest(from_all_ranks(times)).items()}
            (ours, our_s), (theirs, their_s) = medians.items()
            label = f"two ranks, {million:.0f} M parameters: {ours}, {kind}"
            found.append((label, f"{our_s * 1e3:.0f} ms", f"{our_s / their_s:.2f} x {theirs}"))
    return found


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
