"""One training step, with what the ranks share out: by hand and torch's, the same and as fast.

Page `does_it_fit`.
"""

import argparse
import copy
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from mpcourse.multiprocess.fully_sharded import FullySharded
from mpcourse.multiprocess.gradients import average
from mpcourse.multiprocess.rank import Rank
from mpcourse.multiprocess.sharded_optimizer import ShardedOptimizer

Model = tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]
PAIRS = (("state", "torch's state"), ("parameters", "torch's parameters"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the net, and how often it is stepped."""
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8, help="of each rank")
    parser.add_argument("--steps", type=int, default=3)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Step the net in every way, those of a pair in turns.

    Returns:
        differences (way -> the largest of the weights to those of one process, after all steps),
        seconds (way -> of a whole step, the median), step_seconds (of the optimizer's part).
    """
    torch.manual_seed(options.seed)
    layers = [nn.Linear(options.width, options.width) for _ in range(options.layers)]
    net = nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())])
    net = net.to(rank.device)
    rows = torch.randn(rank.world_size * options.rows, options.width).to(rank.device)
    wanted = _alone(copy.deepcopy(net), rows, options.steps)
    mine = rows[rank.rank * options.rows :][: options.rows]
    result: dict[str, Any] = {"differences": {}, "seconds": {}, "step_seconds": {}}
    for pair in [*PAIRS, ("gradients",)]:
        models = {way: _WAYS[way](copy.deepcopy(net), rank) for way in pair}
        seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in pair}
        for step in range(options.steps):
            for way, model in models.items():
                seconds[way].append(_step(model, mine, rank, step))
        for way, (model, _, _) in models.items():
            gaps = [(a - b).abs().max() for a, b in zip(_whole(model), wanted, strict=True)]
            result["differences"][way] = max(gap.item() for gap in gaps)
            result["seconds"][way], result["step_seconds"][way] = map(
                statistics.median, zip(*seconds[way], strict=True)
            )
    return result


def _alone(net: nn.Module, rows: Tensor, steps: int) -> list[Tensor]:
    """The weights that one process comes to with the rows of all."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def _step(model: Model, rows: Tensor, rank: Rank, number: int) -> tuple[float, float]:
    net, optimizer, finish = model
    distributed.barrier()
    start = rank.seconds()
    optimizer.zero_grad()
    rank.at("forward", number)
    loss = net(rows).square().mean()
    rank.at("backward", number)
    loss.backward()
    finish()
    rank.at("step", number)
    middle = rank.seconds()
    optimizer.step()
    end = rank.seconds()
    return end - start, end - middle


def _state(net: nn.Module, rank: Rank) -> Model:
    optimizer = ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)
    return net, optimizer, lambda: average(net, distributed.all_reduce)


def _gradients(net: nn.Module, rank: Rank) -> Model:
    optimizer = ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)
    optimizer.shard_gradients()
    return net, optimizer, lambda: None


def _parameters(net: nn.Module, rank: Rank) -> Model:
    sharded = FullySharded(net)
    return sharded, torch.optim.AdamW(sharded.parameters(), lr=1e-3), sharded.wait


def _torch_state(net: nn.Module, rank: Rank) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own deprecations
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)
    return net, optimizer, lambda: average(net, distributed.all_reduce)


def _torch_parameters(net: nn.Module, rank: Rank) -> Model:
    mesh = init_device_mesh(rank.device.type, (rank.world_size,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3), lambda: None


def _whole(model: nn.Module) -> list[Tensor]:
    if isinstance(model, FullySharded):
        return list(model.full_parameters().values())
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]


_WAYS = {
    "state": _state,
    "torch's state": _torch_state,
    "gradients": _gradients,
    "parameters": _parameters,
    "torch's parameters": _torch_parameters,
}
